//! The driver's calls on host memory.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::ops::{Gate, Op};
use super::state::Defect;
use super::{Host, Mode, failed, lock, unknown};
use crate::ability::Ability;
use crate::driver::{
    Class, Code, Driver, DriverError, DriverResult, Facts, FunctionFacts, Geometry, Kind, Memory,
    Place, Raw, RawArg, SHARE_BYTES, Source, Way,
};

/// What needs two processes.
fn one_process(call: &'static str) -> DriverError {
    // 801 is hipErrorNotSupported.
    failed(call, 801, "host memory of one process", Class::Call)
}

impl<M: Mode> Host<M> {
    fn put(&self, call: &'static str, stream: Raw, op: Op) -> DriverResult<()> {
        lock(&self.shared.state).submit(call, stream, &[op])?;
        self.shared.changed.notify_all();
        Ok(())
    }

    fn gate(&self, call: &'static str, event: Raw) -> DriverResult<Arc<Gate>> {
        let state = lock(&self.shared.state);
        let gate = state.events.get(&event);
        gate.cloned().ok_or_else(|| unknown(call))
    }

    /// Runs a few operations, as a real device does while somebody asks.
    fn some_steps(&self) {
        if self.worker.is_none() {
            let mut state = lock(&self.shared.state);
            for _ in 0..state.draw(3) {
                state.step();
            }
        }
    }
}

#[allow(clippy::missing_safety_doc)] // the trait's contract
impl<M: Mode> Driver for Host<M> {
    fn kind(&self) -> Kind {
        M::KIND
    }

    fn count(&self) -> DriverResult<u32> {
        Ok(self.devices)
    }

    fn facts(&self, _ordinal: u32) -> DriverResult<Facts> {
        Ok(self.facts.clone())
    }

    fn compiler(&self) -> Result<String, String> {
        let none = "images of the host are functions of this process";
        self.compiler.clone().ok_or_else(|| none.into())
    }

    fn compile(&self, source: &Source<'_>) -> Result<Code, String> {
        self.compiler()?;
        match source.text.lines().find(|line| line.starts_with("#error")) {
            Some(line) => Err(format!("{}: {line}", source.name)),
            None => {
                let text = format!("{} {:?} {}", source.arch, source.options, source.text);
                Ok(Code::Ptx(text.into_bytes()))
            }
        }
    }

    fn open(&self, ordinal: u32) -> DriverResult<Raw> {
        Ok(Raw::from(ordinal) + 1)
    }

    unsafe fn close(&self, _d: Raw) -> DriverResult<()> {
        Ok(())
    }

    unsafe fn memory(&self, d: Raw) -> DriverResult<Memory> {
        let state = lock(&self.shared.state);
        Ok(Memory {
            free: state.room(d),
            total: state.capacity,
        })
    }

    unsafe fn alloc(&self, d: Raw, place: Place, bytes: u64) -> DriverResult<Raw> {
        let mut state = lock(&self.shared.state);
        state.sticky("alloc")?;
        // 2 is hipErrorOutOfMemory.
        let none = || failed("alloc", 2, "out of memory", Class::Memory);
        let endless = state.has(Defect::MemoryEndless);
        let fits = bytes <= state.room(d);
        match (fits, endless) {
            (false, false) => Err(none()),
            (false, true) => state.memory.alloc(place, 1).ok_or_else(none),
            (true, _) => state.memory.alloc(place, bytes).ok_or_else(none),
        }
    }

    unsafe fn free(&self, _d: Raw, _place: Place, address: Raw) -> DriverResult<()> {
        let mut state = lock(&self.shared.state);
        if let Some(op) = state.uses(address) {
            let what = format!("{address:#x} freed before {op} was done");
            state.violations.push(what);
        }
        if state.has(Defect::FreesLeak) {
            return Ok(());
        }
        if state.memory.free(address) {
            return Ok(());
        }
        state
            .violations
            .push(format!("{address:#x} freed, but not allocated"));
        Err(unknown("free"))
    }

    unsafe fn stream_create(&self, _d: Raw) -> DriverResult<Raw> {
        let mut state = lock(&self.shared.state);
        state.sticky("stream_create")?;
        let handle = state.handle();
        state.streams.insert(handle, super::state::Queue::default());
        Ok(handle)
    }

    unsafe fn stream_destroy(&self, _d: Raw, stream: Raw) -> DriverResult<()> {
        let mut state = lock(&self.shared.state);
        match state.streams.remove(&stream) {
            Some(queue) if queue.idle() => Ok(()),
            Some(_) => {
                state
                    .violations
                    .push("a stream was destroyed at work".into());
                Ok(())
            }
            None => Err(unknown("stream_destroy")),
        }
    }

    unsafe fn stream_sync(&self, _d: Raw, stream: Raw) -> DriverResult<()> {
        if lock(&self.shared.state).has(Defect::SyncIgnored) {
            return Ok(());
        }
        self.until("stream_sync", |state| {
            let queue = state.streams.get(&stream);
            queue
                .map(super::state::Queue::idle)
                .ok_or_else(|| unknown("stream_sync"))
        })
    }

    unsafe fn stream_wait(&self, _d: Raw, stream: Raw, event: Raw) -> DriverResult<()> {
        let gate = self.gate("stream_wait", event)?;
        let record = gate.requested.load(Ordering::Acquire);
        self.put("stream_wait", stream, Op::Wait(gate, record))
    }

    unsafe fn event_create(&self, _d: Raw, _timed: bool) -> DriverResult<Raw> {
        let mut state = lock(&self.shared.state);
        state.sticky("event_create")?;
        let handle = state.handle();
        state.events.insert(handle, Arc::default());
        Ok(handle)
    }

    unsafe fn event_destroy(&self, _d: Raw, event: Raw) -> DriverResult<()> {
        let removed = lock(&self.shared.state).events.remove(&event);
        removed.map(drop).ok_or_else(|| unknown("event_destroy"))
    }

    unsafe fn event_record(&self, _d: Raw, event: Raw, stream: Raw) -> DriverResult<()> {
        let gate = self.gate("event_record", event)?;
        let record = gate.requested.fetch_add(1, Ordering::AcqRel) + 1;
        let result = self.put(
            "event_record",
            stream,
            Op::Record(Arc::clone(&gate), record),
        );
        if result.is_err() {
            gate.requested.fetch_sub(1, Ordering::AcqRel);
        }
        result
    }

    unsafe fn event_done(&self, _d: Raw, event: Raw) -> DriverResult<bool> {
        self.some_steps();
        let gate = self.gate("event_done", event)?;
        let state = lock(&self.shared.state);
        state.sticky("event_done")?;
        Ok(gate.done() || state.has(Defect::EventsFireEarly))
    }

    unsafe fn event_sync(&self, _d: Raw, event: Raw) -> DriverResult<()> {
        let gate = self.gate("event_sync", event)?;
        self.until("event_sync", |state| {
            Ok(gate.done() || state.has(Defect::EventsFireEarly))
        })
    }

    unsafe fn event_ms(&self, _d: Raw, start: Raw, end: Raw) -> DriverResult<f32> {
        let at = |event| Ok(self.gate("event_ms", event)?.at.load(Ordering::Acquire));
        let nanos = at(end)? as f64 - at(start)? as f64;
        Ok((nanos / 1e6) as f32)
    }

    unsafe fn copy(
        &self,
        _d: Raw,
        stream: Raw,
        way: Way,
        to: Raw,
        from: Raw,
        bytes: u64,
    ) -> DriverResult<()> {
        let places = {
            let state = lock(&self.shared.state);
            (state.memory.place(from), state.memory.place(to))
        };
        let near = |place| matches!(place, Some(Place::Pinned | Place::Unified));
        let far = |place| matches!(place, Some(Place::Device | Place::Unified));
        let fits = match way {
            Way::Up => near(places.0) && far(places.1),
            Way::Down => far(places.0) && near(places.1),
            Way::Within => places.0.is_some() && places.1.is_some(),
        };
        if !fits && bytes > 0 {
            // 21 is hipErrorInvalidMemcpyDirection.
            return Err(failed("copy", 21, "invalid direction", Class::Call));
        }
        self.put("copy", stream, Op::Copy { to, from, bytes })
    }

    unsafe fn fill(&self, _d: Raw, stream: Raw, to: Raw, byte: u8, bytes: u64) -> DriverResult<()> {
        self.put("fill", stream, Op::Fill { to, byte, bytes })
    }

    unsafe fn load(&self, _d: Raw, code: &Code) -> DriverResult<Raw> {
        let Code::Host(module) = code else {
            return Err(failed("load", 200, "not an image of the host", Class::Call));
        };
        let mut state = lock(&self.shared.state);
        let handle = state.handle();
        state.modules.insert(handle, Arc::clone(module));
        Ok(handle)
    }

    unsafe fn unload(&self, _d: Raw, module: Raw) -> DriverResult<()> {
        let mut state = lock(&self.shared.state);
        state.functions.retain(|_, (of, _)| *of != module);
        let removed = state.modules.remove(&module);
        removed.map(drop).ok_or_else(|| unknown("unload"))
    }

    unsafe fn function(&self, _d: Raw, module: Raw, name: &str) -> DriverResult<Raw> {
        let mut state = lock(&self.shared.state);
        let found = state
            .modules
            .get(&module)
            .ok_or_else(|| unknown("function"))?;
        if !found.has(name) {
            // 500 is hipErrorNotFound.
            let words = format!("no kernel {name}");
            return Err(failed("function", 500, words, Class::Call));
        }
        let handle = state.handle();
        state.functions.insert(handle, (module, name.into()));
        Ok(handle)
    }

    unsafe fn argument_sizes(&self, _d: Raw, function: Raw) -> DriverResult<Option<Vec<u32>>> {
        let state = lock(&self.shared.state);
        let (module, name) = state
            .functions
            .get(&function)
            .ok_or_else(|| unknown("argument_sizes"))?;
        if state.has(Defect::ArgumentsUnchecked) {
            return Ok(None);
        }
        Ok(state
            .modules
            .get(module)
            .and_then(|m| m.argument_sizes(name)))
    }

    unsafe fn function_facts(&self, _d: Raw, _function: Raw) -> DriverResult<FunctionFacts> {
        Ok(FunctionFacts {
            threads: self.facts.limits.threads,
            waits: true,
            ..FunctionFacts::default()
        })
    }

    unsafe fn allow_shared(&self, _d: Raw, _function: Raw, _bytes: u32) -> DriverResult<()> {
        Ok(())
    }

    unsafe fn launch(
        &self,
        _d: Raw,
        stream: Raw,
        function: Raw,
        geometry: &Geometry,
        args: &[RawArg],
    ) -> DriverResult<()> {
        let op = {
            let state = lock(&self.shared.state);
            let found = state.functions.get(&function);
            let (module, kernel) = found.ok_or_else(|| unknown("launch"))?;
            let module = state.modules.get(module).ok_or_else(|| unknown("launch"))?;
            Op::Launch {
                module: Arc::clone(module),
                kernel: Arc::clone(kernel),
                geometry: *geometry,
                args: args.to_vec(),
            }
        };
        self.put("launch", stream, op)
    }

    unsafe fn launch_early(
        &self,
        d: Raw,
        stream: Raw,
        function: Raw,
        geometry: &Geometry,
        args: &[RawArg],
    ) -> DriverResult<()> {
        // SAFETY: the caller's promise covers it.
        unsafe { self.launch(d, stream, function, geometry, args) }?;
        lock(&self.shared.state).early += 1;
        Ok(())
    }

    unsafe fn capture_begin(&self, _d: Raw, stream: Raw) -> DriverResult<()> {
        let mut state = lock(&self.shared.state);
        state.sticky("capture_begin")?;
        let queue = state.streams.get_mut(&stream);
        queue.ok_or_else(|| unknown("capture_begin"))?.capture = Some(Vec::new());
        Ok(())
    }

    unsafe fn capture_end(&self, _d: Raw, stream: Raw) -> DriverResult<Raw> {
        let mut state = lock(&self.shared.state);
        let queue = state.streams.get_mut(&stream);
        let capture = queue.and_then(|q| q.capture.take());
        let mut ops = capture.ok_or_else(|| unknown("capture_end"))?;
        if state.has(Defect::GraphsShort) {
            ops.pop();
        }
        let handle = state.handle();
        state.graphs.insert(handle, Arc::new(ops));
        Ok(handle)
    }

    unsafe fn graph_launch(&self, _d: Raw, graph: Raw, stream: Raw) -> DriverResult<()> {
        let mut state = lock(&self.shared.state);
        let ops = state.graphs.get(&graph).cloned();
        let ops = ops.ok_or_else(|| unknown("graph_launch"))?;
        state.submit("graph_launch", stream, &ops)?;
        drop(state);
        self.shared.changed.notify_all();
        Ok(())
    }

    unsafe fn register(&self, _d: Raw, address: Raw, bytes: u64) -> DriverResult<()> {
        let mut state = lock(&self.shared.state);
        state.sticky("register")?;
        // 1 is hipErrorInvalidValue, 712 hipErrorHostMemoryAlreadyRegistered.
        if bytes == 0 {
            return Err(failed("register", 1, "no bytes", Class::Call));
        }
        if state.memory.is_taken(address, bytes) {
            let words = "host memory already registered";
            return Err(failed("register", 712, words, Class::Call));
        }
        state.memory.adopt(Place::Pinned, address, bytes, false);
        state.registered.insert(address, bytes);
        Ok(())
    }

    unsafe fn unregister(&self, _d: Raw, address: Raw) -> DriverResult<()> {
        let mut state = lock(&self.shared.state);
        if let Some(op) = state.uses(address) {
            let what = format!("{address:#x} unregistered before {op} was done");
            state.violations.push(what);
        }
        if state.registered.remove(&address).is_some() && state.memory.free(address) {
            return Ok(());
        }
        // 713 is hipErrorHostMemoryNotRegistered.
        let words = "host memory not registered";
        Err(failed("unregister", 713, words, Class::Call))
    }

    unsafe fn share(&self, _d: Raw, _address: Raw) -> DriverResult<[u8; SHARE_BYTES]> {
        Err(one_process("share"))
    }

    unsafe fn open_shared(
        &self,
        _d: Raw,
        _handle: &[u8; SHARE_BYTES],
        _bytes: u64,
    ) -> DriverResult<Raw> {
        Err(one_process("open_shared"))
    }

    unsafe fn close_shared(&self, _d: Raw, _address: Raw) -> DriverResult<()> {
        Err(one_process("close_shared"))
    }

    fn reaches(&self, _from: u32, _to: u32) -> DriverResult<Ability> {
        Ok(self.peers.clone())
    }

    unsafe fn reach(&self, d: Raw, other: Raw) -> DriverResult<()> {
        // 704 is hipErrorPeerAccessAlreadyEnabled, 705 hipErrorPeerAccessNotEnabled.
        let words = "peer access already enabled";
        match lock(&self.shared.state).peers.insert((d, other)) {
            true => Ok(()),
            false => Err(failed("reach", 704, words, Class::Call)),
        }
    }

    unsafe fn unreach(&self, d: Raw, other: Raw) -> DriverResult<()> {
        let words = "peer access not enabled";
        match lock(&self.shared.state).peers.remove(&(d, other)) {
            true => Ok(()),
            false => Err(failed("unreach", 705, words, Class::Call)),
        }
    }

    unsafe fn graph_destroy(&self, _d: Raw, graph: Raw) -> DriverResult<()> {
        let removed = lock(&self.shared.state).graphs.remove(&graph);
        removed.map(drop).ok_or_else(|| unknown("graph_destroy"))
    }
}
