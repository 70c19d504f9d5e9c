//! hipRTC's symbols. Codes: 0, 3 (invalid input), 6 (compilation), as `hiprtc.h` numbers them.
#![allow(unreachable_pub, reason = "symbols of the library")]
#![allow(
    clippy::missing_safety_doc,
    reason = "the vendor's declarations are the contract"
)]
#![allow(non_snake_case, reason = "the vendor's names")]

use std::ffi::{CStr, c_char, c_void};

use crate::answers::ARCH;
use crate::modules;

const INVALID_INPUT: i32 = 3;
const COMPILATION: i32 = 6;

struct Program {
    name: String,
    text: String,
    log: Vec<u8>,
    code: Vec<u8>,
}

/// A string of the caller.
///
/// # Safety
/// Null, or zero-terminated and valid during the call.
unsafe fn text(at: *const c_char) -> Option<String> {
    if at.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(at) };
    Some(text.to_string_lossy().into_owned())
}

/// The program behind a handle.
///
/// # Safety
/// Null, or made by `hiprtcCreateProgram`, not destroyed, and nobody else's during the call.
unsafe fn program<'a>(at: *mut c_void) -> Option<&'a mut Program> {
    // SAFETY: the caller's promise.
    unsafe { at.cast::<Program>().as_mut() }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcVersion(major: *mut i32, minor: *mut i32) -> i32 {
    // SAFETY: the declaration's contract.
    unsafe {
        major.write(6);
        minor.write(3);
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcCreateProgram(
    out: *mut *mut c_void,
    source: *const c_char,
    name: *const c_char,
    _headers: i32,
    _texts: *const *const c_char,
    _names: *const *const c_char,
) -> i32 {
    // SAFETY: the declaration's contract.
    let (source, name) = unsafe { (text(source), text(name)) };
    let Some(source) = source else {
        return INVALID_INPUT;
    };
    let program = Box::new(Program {
        name: name.unwrap_or_default(),
        text: source,
        log: Vec::new(),
        code: Vec::new(),
    });
    // SAFETY: as above.
    unsafe { out.write(Box::into_raw(program).cast()) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcCompileProgram(
    at: *mut c_void,
    count: i32,
    options: *const *const c_char,
) -> i32 {
    // SAFETY: the declaration's contract.
    let Some(program) = (unsafe { program(at) }) else {
        return INVALID_INPUT;
    };
    let option = |i: i32| {
        // SAFETY: the declaration's contract: `count` strings.
        unsafe { text(*options.add(usize::try_from(i).unwrap_or(0))) }
    };
    let wanted = format!("--gpu-architecture={ARCH}");
    let has_arch = (0..count).filter_map(option).any(|o| o == wanted);
    let built = match has_arch {
        true => modules::compile(&program.name, &program.text, ARCH),
        false => Err(format!("the device is {ARCH}: no option {wanted}")),
    };
    match built {
        Ok(code) => {
            program.code = code;
            0
        }
        Err(log) => {
            program.log = log.into_bytes();
            COMPILATION
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcDestroyProgram(at: *mut *mut c_void) -> i32 {
    // SAFETY: the declaration's contract: a program's handle, which is void from now on.
    unsafe {
        let program = at.replace(std::ptr::null_mut());
        if program.is_null() {
            return INVALID_INPUT;
        }
        drop(Box::from_raw(program.cast::<Program>()));
    }
    0
}

/// Writes a size.
unsafe fn size(at: *mut c_void, out: *mut usize, of: fn(&Program) -> usize) -> i32 {
    // SAFETY: the declaration's contract.
    let Some(program) = (unsafe { program(at) }) else {
        return INVALID_INPUT;
    };
    // SAFETY: as above.
    unsafe { out.write(of(program)) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcGetProgramLogSize(at: *mut c_void, out: *mut usize) -> i32 {
    // SAFETY: the declaration's contract. One byte more for the zero.
    unsafe { size(at, out, |p| p.log.len() + 1) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcGetProgramLog(at: *mut c_void, out: *mut c_char) -> i32 {
    // SAFETY: the declaration's contract: room for what `hiprtcGetProgramLogSize` said.
    unsafe {
        let Some(program) = program(at) else {
            return INVALID_INPUT;
        };
        let out = out.cast::<u8>();
        out.copy_from_nonoverlapping(program.log.as_ptr(), program.log.len());
        out.add(program.log.len()).write(0);
    }
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcGetCodeSize(at: *mut c_void, out: *mut usize) -> i32 {
    // SAFETY: the declaration's contract.
    unsafe { size(at, out, |p| p.code.len()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hiprtcGetCode(at: *mut c_void, out: *mut c_char) -> i32 {
    // SAFETY: the declaration's contract: room for what `hiprtcGetCodeSize` said.
    unsafe {
        let Some(program) = program(at) else {
            return INVALID_INPUT;
        };
        out.cast::<u8>()
            .copy_from_nonoverlapping(program.code.as_ptr(), program.code.len());
    }
    0
}
