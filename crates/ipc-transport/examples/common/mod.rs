//! A program that is its own worker: started again with the word `worker`, it serves on standard input.

use std::os::fd::AsFd;
use std::path::PathBuf;

use ipc_transport::handshake::Place;
use ipc_transport::handshake::{Configure, Dims};
use ipc_transport::launch::{Launch, Process};
use ipc_transport::probe::Probe;
use ipc_transport::remote::{Choice, Plan, RemoteBackbone, Shape};
use ipc_transport::worker::{self, Loaded};

const WORD: &str = "worker";

/// This program as a worker.
pub(crate) fn process() -> Box<dyn Launch> {
    Box::new(Process {
        program: std::env::current_exe().unwrap(),
        args: vec![WORD.into()],
        env: Vec::new(),
    })
}

/// A backbone of the shape `dims` over `choice`, in the workers of `launch`, which load `file`.
pub(crate) fn remote(
    dims: Dims,
    file: PathBuf,
    choice: Choice,
    launch: Box<dyn Launch>,
) -> RemoteBackbone {
    let shape = Shape {
        dims,
        verify_max: 8,
        kv_round: false,
        threads: 1,
        file,
        place: Place::default(),
    };
    let plan = Plan {
        transport: choice,
        ..Plan::new(shape)
    };
    RemoteBackbone::start(plan, launch).unwrap()
}

/// Serves and returns true if this program was started as a worker.
pub(crate) fn served(
    args: &[String],
    load: impl FnOnce(&Configure) -> Result<Loaded, String>,
) -> bool {
    if args.first().is_none_or(|word| word != WORD) {
        return false;
    }
    let control = std::io::stdin().as_fd().try_clone_to_owned().unwrap();
    // The parent ends it by closing the channel.
    let _ = worker::run(control, None, Probe::default(), load);
    true
}
