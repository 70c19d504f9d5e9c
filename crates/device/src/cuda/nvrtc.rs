//! NVRTC: sources to machine code for the device found.

use std::ffi::{CString, c_char};
use std::path::Path;
use std::ptr;

use cudarc::nvrtc::sys;
use libloading::Library;

use crate::driver::{Code, Source};
use crate::fault::words;

/// What is called here.
const SYMBOLS: [&str; 8] = [
    "nvrtcVersion",
    "nvrtcCreateProgram",
    "nvrtcCompileProgram",
    "nvrtcDestroyProgram",
    "nvrtcGetProgramLogSize",
    "nvrtcGetProgramLog",
    // From 11.1 on.
    "nvrtcGetCUBINSize",
    "nvrtcGetCUBIN",
];

/// NVRTC was found, and which.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nvrtc {
    major: i32,
    minor: i32,
}

impl Nvrtc {
    pub(super) fn version(&self) -> String {
        format!("NVRTC {}.{}", self.major, self.minor)
    }
}

/// Calls NVRTC and turns its code into a result.
macro_rules! rtc {
    ($name:ident($($arg:expr),* $(,)?)) => {{
        // SAFETY: the name was found in the library (`probe`); the program is live; pointers are to
        // locals of the caller that outlive the call, with room for what is written.
        let code = unsafe { sys::$name($($arg),*) };
        match code {
            sys::nvrtcResult::NVRTC_SUCCESS => Ok(()),
            other => Err(format!("{}: {other:?}", stringify!($name))),
        }
    }};
}

/// Looks for the library: at `path` alone if given, else where the system looks.
pub(super) fn probe(path: Option<&Path>) -> Result<Nvrtc, String> {
    if let Some(path) = path {
        // SAFETY: runs the library's initialisers; it is NVRTC by the caller's word.
        let library = unsafe { Library::new(path) };
        let library = library.map_err(|e| format!("{}: {}", path.display(), words(&e)))?;
        // Stays for the life of the process: the search below then finds it by its own name.
        std::mem::forget(library);
    }
    // SAFETY: looks for the library, calls nothing in it.
    if !unsafe { sys::is_culib_present() } {
        return Err("no library libnvrtc.so, .13, .12 or .11 was found".into());
    }
    // SAFETY: the library was found, so that this opens it instead of panicking.
    let library = unsafe { sys::culib() };
    for name in SYMBOLS {
        // SAFETY: the address is only compared with null; nothing is called.
        let found = unsafe { library.get::<*const ()>(name.as_bytes()) };
        found.map_err(|e| format!("libnvrtc has no {name}: {}", words(&e)))?;
    }
    let (mut major, mut minor) = (0, 0);
    rtc!(nvrtcVersion(&raw mut major, &raw mut minor))?;
    Ok(Nvrtc { major, minor })
}

/// A program, destroyed when dropped.
struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // It can only fail for a handle that is not a program.
        let _ = rtc!(nvrtcDestroyProgram(&raw mut self.0));
    }
}

/// Compiles to machine code. `Err` is the log.
pub(super) fn compile(source: &Source<'_>) -> Result<Code, String> {
    let c = |text: &str| CString::new(text).map_err(|e| e.to_string());
    let (text, name) = (c(source.text)?, c(source.name)?);
    let arch = format!("--gpu-architecture={}", source.arch);
    let options = source.options.iter().copied().chain([arch.as_str()]);
    let options = options.map(c).collect::<Result<Vec<_>, _>>()?;
    let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
    let mut program = ptr::null_mut();
    rtc!(nvrtcCreateProgram(
        &raw mut program,
        text.as_ptr(),
        name.as_ptr(),
        0,
        ptr::null(),
        ptr::null()
    ))?;
    let program = Program(program);
    let count = i32::try_from(pointers.len()).map_err(|e| e.to_string())?;
    rtc!(nvrtcCompileProgram(program.0, count, pointers.as_ptr()))
        .map_err(|e| format!("{e}\n{}", log(&program)))?;
    let mut size = 0;
    rtc!(nvrtcGetCUBINSize(program.0, &raw mut size))?;
    let mut cubin = vec![0u8; size];
    rtc!(nvrtcGetCUBIN(program.0, cubin.as_mut_ptr().cast()))?;
    Ok(Code::Cubin(cubin))
}

fn log(program: &Program) -> String {
    let mut size = 0;
    if let Err(e) = rtc!(nvrtcGetProgramLogSize(program.0, &raw mut size)) {
        return e;
    }
    let mut text = vec![0u8; size];
    if let Err(e) = rtc!(nvrtcGetProgramLog(program.0, text.as_mut_ptr().cast())) {
        return e;
    }
    let text = String::from_utf8_lossy(&text);
    text.trim_end_matches(['\0', '\n']).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_becomes_machine_code() {
        let found = probe(None);
        let why = found.as_ref().err().cloned().unwrap_or_default();
        let nvrtc = testkit::require_some!(found.ok(), "no NVRTC: {why}");
        assert!(nvrtc.version().starts_with("NVRTC "));
        let source = |text| Source {
            name: "f",
            text,
            options: &["--std=c++17", "-fmad=false"],
            arch: "sm_90",
        };
        let good = "extern \"C\" __global__ void f(int* y) { y[threadIdx.x] = 1; }";
        let Ok(Code::Cubin(cubin)) = compile(&source(good)) else {
            panic!("not compiled");
        };
        assert!(cubin.starts_with(b"\x7fELF"));
        let Ok(Code::Cubin(again)) = compile(&source(good)) else {
            panic!("not compiled");
        };
        assert!(again == cubin, "the same source gives the same image");
        let broken = "extern \"C\" __global__ void f(int* y) { y[0] = no_such_name; }";
        let log = compile(&source(broken)).unwrap_err();
        assert!(log.contains("no_such_name"), "{log}");
    }

    #[test]
    fn a_given_file_is_authoritative() {
        let reason = probe(Some(Path::new("/nowhere/libnvrtc.so"))).unwrap_err();
        assert!(reason.contains("/nowhere/libnvrtc.so"), "{reason}");
    }
}
