//! Calls that not every runtime or device has: pinning memory of the host, memory across processes, peers.
//!
//! Functions that the library lacks are named by the ability that needs them. Must not know: who asks.

use std::ffi::c_void;
use std::ptr;

use libloading::os::unix::Library;

use super::abi;
use super::calls::{Hip, at, raw};
use super::table::Handle;
use crate::ability::{Ability, Lack};
use crate::driver::{DriverError, DriverResult, Raw, SHARE_BYTES};

/// `hipIpcMemHandle_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct MemHandle([u8; SHARE_BYTES]);

/// Functions that may be missing, with the vendor's types (`hip_runtime_api.h`, see `abi` for the version).
macro_rules! optional {
    ($( $name:ident($($arg:ty),*); )*) => {
        #[allow(non_snake_case)] // the vendor's names
        #[derive(Clone, Copy, Debug, Default)]
        pub(super) struct Optional {
            $( $name: Option<unsafe extern "C" fn($($arg),*) -> i32>, )*
        }

        impl Optional {
            pub(super) fn load(library: &Library) -> Self {
                Self { $(
                    // SAFETY: the type is the vendor's declaration of that name.
                    $name: unsafe { library.get(concat!(stringify!($name), "\0").as_bytes()) }
                        .ok()
                        .map(|f| *f),
                )* }
            }

            /// The first of the names that the library lacks.
            fn lack(&self, wanted: &[&'static str]) -> Option<&'static str> {
                let missing = [$( (stringify!($name), self.$name.is_none()), )*];
                let is_missing = |name: &&&'static str| missing.contains(&(**name, true));
                wanted.iter().find(is_missing).copied()
            }
        }
    };
}

optional! {
    hipHostRegister(Handle, usize, u32);
    hipHostUnregister(Handle);
    hipIpcGetMemHandle(*mut MemHandle, Handle);
    hipIpcOpenMemHandle(*mut Handle, MemHandle, u32);
    hipIpcCloseMemHandle(Handle);
    hipDeviceCanAccessPeer(*mut i32, i32, i32);
    hipDeviceEnablePeerAccess(i32, u32);
    hipDeviceDisablePeerAccess(i32);
}

/// Calls a function that may be missing and turns its code into a result.
macro_rules! maybe {
    ($self:ident, $name:ident($($arg:expr),* $(,)?)) => {{
        let Some(function) = $self.optional.$name else {
            return Err(missing(stringify!($name)));
        };
        // SAFETY: as in `hip!`.
        let code = unsafe { function($($arg),*) };
        $self.check(stringify!($name), code)
    }};
}

/// Not reached where abilities are asked first.
fn missing(call: &'static str) -> DriverError {
    DriverError {
        call,
        code: 801, // hipErrorNotSupported
        name: "the library has no such function".into(),
        class: crate::driver::Class::Call,
    }
}

/// The number of a device's handle.
fn number(d: Raw) -> i32 {
    d as i32 - 1
}

impl Hip {
    fn named(&self, wanted: &[&'static str]) -> Ability {
        let lack = self.optional.lack(wanted);
        lack.map_or(Ability::Yes, |name| Ability::No(Lack::Call(name)))
    }

    /// Whether the device pins memory of the host (`hipDeviceAttributeHostRegisterSupported`).
    pub(super) fn register_ability(&self, device: i32) -> DriverResult<Ability> {
        let named = self.named(&["hipHostRegister", "hipHostUnregister"]);
        let can = self.attribute(device, abi::attribute::HOST_REGISTER)? != 0;
        Ok(match named {
            Ability::Yes => Ability::when(can, Lack::Device("HostRegisterSupported")),
            no @ Ability::No(_) => no,
        })
    }

    /// Whether other processes can open a device's memory. No attribute tells: the probe does.
    pub(super) fn share_ability(&self) -> Ability {
        self.named(&[
            "hipIpcGetMemHandle",
            "hipIpcOpenMemHandle",
            "hipIpcCloseMemHandle",
        ])
    }

    pub(super) fn pin(&self, d: Raw, address: Raw, bytes: u64) -> DriverResult<()> {
        self.current(d)?;
        maybe!(
            self,
            hipHostRegister(at(address), bytes as usize, abi::REGISTER_PORTABLE)
        )
    }

    pub(super) fn unpin(&self, d: Raw, address: Raw) -> DriverResult<()> {
        self.current(d)?;
        maybe!(self, hipHostUnregister(at(address)))
    }

    pub(super) fn lend(&self, d: Raw, address: Raw) -> DriverResult<[u8; SHARE_BYTES]> {
        self.current(d)?;
        let mut handle = MemHandle([0; SHARE_BYTES]);
        maybe!(self, hipIpcGetMemHandle(&raw mut handle, at(address)))?;
        Ok(handle.0)
    }

    pub(super) fn borrow(&self, d: Raw, handle: &[u8; SHARE_BYTES]) -> DriverResult<Raw> {
        self.current(d)?;
        let mut address: *mut c_void = ptr::null_mut();
        maybe!(
            self,
            hipIpcOpenMemHandle(&raw mut address, MemHandle(*handle), abi::LAZY_PEERS)
        )?;
        Ok(raw(address))
    }

    pub(super) fn give_back(&self, d: Raw, address: Raw) -> DriverResult<()> {
        self.current(d)?;
        maybe!(self, hipIpcCloseMemHandle(at(address)))
    }

    pub(super) fn peer(&self, from: u32, to: u32) -> DriverResult<Ability> {
        let named = self.named(&[
            "hipDeviceCanAccessPeer",
            "hipDeviceEnablePeerAccess",
            "hipDeviceDisablePeerAccess",
        ]);
        if let Ability::No(_) = named {
            return Ok(named);
        }
        let mut can = 0;
        let (from, to) = (from.cast_signed(), to.cast_signed());
        maybe!(self, hipDeviceCanAccessPeer(&raw mut can, from, to))?;
        let lack = Lack::Device("hipDeviceCanAccessPeer");
        Ok(Ability::when(can != 0, lack))
    }

    pub(super) fn enable(&self, d: Raw, other: Raw) -> DriverResult<()> {
        self.current(d)?;
        maybe!(self, hipDeviceEnablePeerAccess(number(other), 0))
    }

    pub(super) fn disable(&self, d: Raw, other: Raw) -> DriverResult<()> {
        self.current(d)?;
        maybe!(self, hipDeviceDisablePeerAccess(number(other)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hip::search;

    #[test]
    fn a_function_that_is_missing_is_named() {
        let (libc, _) = search::find("C", None, &["libc.so.6"]).unwrap();
        let none = Optional::load(&libc);
        assert_eq!(none.lack(&["hipHostRegister"]), Some("hipHostRegister"));
        assert_eq!(none.lack(&[]), None);
    }
}
