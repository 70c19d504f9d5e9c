//! hipRTC: sources to code objects for the device found.

use std::ffi::{CString, c_char};
use std::path::Path;
use std::ptr;

use libloading::os::unix::Library;

use super::search;
use super::table::{Handle, RtcTable};
use crate::driver::{Code, Source};
use crate::fault::Absent;

const NAMES: [&str; 5] = [
    "libhiprtc.so",
    "libhiprtc.so.7",
    "libhiprtc.so.6",
    "libhiprtc.so.5",
    "/opt/rocm/lib/libhiprtc.so",
];

/// hipRTC, and the library that holds it.
#[derive(Debug)]
pub(super) struct Rtc {
    table: RtcTable,
    version: (i32, i32),
    _library: Option<Library>,
}

/// Calls hipRTC and turns its code into a result.
macro_rules! rtc {
    ($table:expr, $name:ident($($arg:expr),* $(,)?)) => {{
        let function = $table.$name;
        // SAFETY: the table's types are the vendor's; the program is live; pointers are to locals
        // of the caller that outlive the call, with room for what is written.
        match unsafe { function($($arg),*) } {
            0 => Ok(()),
            code => Err(format!("{}: code {code}", stringify!($name))),
        }
    }};
}

impl Rtc {
    /// Looks in hipRTC's own library, then in the HIP runtime, which held it before 5.x split them.
    pub(super) fn find(path: Option<&Path>, hip: &Library, hip_file: &str) -> Result<Self, Absent> {
        let own = search::find("hipRTC", path, &NAMES);
        let (table, library) = match (own, path) {
            (Ok((library, file)), _) => (RtcTable::load(&library, "hipRTC", &file)?, Some(library)),
            (Err(absent), Some(_)) => return Err(absent),
            (Err(absent), None) => {
                let inside = RtcTable::load(hip, "hipRTC", hip_file);
                (inside.map_err(|_| absent)?, None)
            }
        };
        let (mut major, mut minor) = (0, 0);
        let asked = rtc!(table, hiprtcVersion(&raw mut major, &raw mut minor));
        asked.map_err(|reason| Absent {
            what: "hipRTC".into(),
            reason,
        })?;
        Ok(Self {
            table,
            version: (major, minor),
            _library: library,
        })
    }

    pub(super) fn version(&self) -> String {
        format!("hipRTC {}.{}", self.version.0, self.version.1)
    }

    /// Compiles to a code object. `Err` is the log.
    pub(super) fn compile(&self, source: &Source<'_>) -> Result<Code, String> {
        let c = |text: &str| CString::new(text).map_err(|e| e.to_string());
        let (text, name) = (c(source.text)?, c(source.name)?);
        let arch = format!("--gpu-architecture={}", source.arch);
        let options = source.options.iter().copied().chain([arch.as_str()]);
        let options = options.map(c).collect::<Result<Vec<_>, _>>()?;
        let pointers: Vec<*const c_char> = options.iter().map(|o| o.as_ptr()).collect();
        let mut program: Handle = ptr::null_mut();
        rtc!(
            self.table,
            hiprtcCreateProgram(
                &raw mut program,
                text.as_ptr(),
                name.as_ptr(),
                0,
                ptr::null(),
                ptr::null()
            )
        )?;
        let result = self.build(program, &pointers);
        rtc!(self.table, hiprtcDestroyProgram(&raw mut program))?;
        result
    }

    fn build(&self, program: Handle, options: &[*const c_char]) -> Result<Code, String> {
        let count = i32::try_from(options.len()).map_err(|e| e.to_string())?;
        let built = rtc!(
            self.table,
            hiprtcCompileProgram(program, count, options.as_ptr())
        );
        built.map_err(|e| format!("{e}\n{}", self.log(program)))?;
        let mut size = 0;
        rtc!(self.table, hiprtcGetCodeSize(program, &raw mut size))?;
        let mut code = vec![0u8; size];
        rtc!(self.table, hiprtcGetCode(program, code.as_mut_ptr().cast()))?;
        Ok(Code::Hsaco(code))
    }

    fn log(&self, program: Handle) -> String {
        let mut size = 0;
        if let Err(e) = rtc!(self.table, hiprtcGetProgramLogSize(program, &raw mut size)) {
            return e;
        }
        let mut text = vec![0u8; size];
        if let Err(e) = rtc!(
            self.table,
            hiprtcGetProgramLog(program, text.as_mut_ptr().cast())
        ) {
            return e;
        }
        let text = String::from_utf8_lossy(&text);
        text.trim_end_matches(['\0', '\n']).to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = "extern \"C\" __global__ void f(int* y) { y[threadIdx.x] = 1; }";

    fn source<'a>(text: &'a str, arch: &'a str) -> Source<'a> {
        Source {
            name: "f",
            text,
            options: &["-O3"],
            arch,
        }
    }

    #[test]
    fn a_source_becomes_a_code_object() {
        let found = search::find("HIP runtime", None, &["libamdhip64.so", "libamdhip64.so.5"]);
        let (hip, file) = testkit::require_some!(found.ok(), "no HIP runtime to hold hipRTC");
        let rtc = Rtc::find(None, &hip, &file).unwrap();
        assert!(rtc.version().starts_with("hipRTC "), "{}", rtc.version());
        // gfx1030: also old releases know it. Some end the process at architectures they do not know.
        let Ok(Code::Hsaco(code)) = rtc.compile(&source(SOURCE, "gfx1030")) else {
            panic!("not compiled");
        };
        assert!(code.starts_with(b"\x7fELF") || code.starts_with(b"__CLANG_OFFLOAD"));
        let broken = "extern \"C\" __global__ void f(int* y) { y[0] = no_such_name; }";
        let log = rtc.compile(&source(broken, "gfx1030")).unwrap_err();
        assert!(log.contains("no_such_name"), "{log}");
    }

    #[test]
    fn a_given_file_is_authoritative() {
        let (libc, file) = search::find("C", None, &["libc.so.6"]).unwrap();
        let wrong = Rtc::find(Some(Path::new("/nowhere/libhiprtc.so")), &libc, &file);
        assert!(wrong.unwrap_err().reason.contains("/nowhere/libhiprtc.so"));
        let without = Rtc::find(Some(Path::new("libc.so.6")), &libc, &file).unwrap_err();
        assert!(without.reason.contains("has no hiprtcVersion"), "{without}");
    }
}
