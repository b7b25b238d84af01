//! The few calls of libvirt's C library that `virt` has no safe or no quiet form of.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Once;

use virt::connect::Connect;
use virt::domain::Domain;
use virt::error::{Error, clear_error_callback};
use virt::network::Network;
use virt::sys;

/// Once in a process, before the first connection: libvirt's own lines on stderr are off (fault 25), and a peer that
/// closes while we write is an error and not the end of the process (fault 26).
pub fn prepare() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        clear_error_callback();
        // SAFETY: no handler is installed, and none of ours was: Rust ignores the signal from the start as well.
        let _ = unsafe {
            nix::sys::signal::signal(nix::sys::signal::Signal::SIGPIPE, nix::sys::signal::SigHandler::SigIgn)
        };
    });
}

/// A connection whose end is quiet. `Connect` panics where closing fails, which is to be expected behind a cut.
#[derive(Debug)]
pub struct Connection(ManuallyDrop<Connect>);

impl Connection {
    /// Blocks until the daemon answers or the socket is closed.
    pub fn open(uri: &str) -> Result<Self, Error> {
        prepare();
        Ok(Self(ManuallyDrop::new(Connect::open(Some(uri))?)))
    }
}

impl Deref for Connection {
    type Target = Connect;

    fn deref(&self) -> &Connect {
        &self.0
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: the pointer is that of a connection which was opened, and nobody uses it after its owner.
        // What it answers says nothing to anybody: 0, 1 while objects of it are left, or -1 behind a cut.
        let _ = unsafe { sys::virConnectClose(self.0.as_ptr()) };
    }
}

/// The longest that libvirtd waits for the agent of this domain; in seconds.
pub fn set_agent_timeout(domain: &Domain, seconds: i32) -> Result<(), Error> {
    // SAFETY: the pointer is that of a living domain object.
    match unsafe { sys::virDomainAgentSetResponseTimeout(domain.as_ptr(), seconds, 0) } {
        0 => Ok(()),
        _ => Err(Error::last_error()),
    }
}

/// A network interface as the guest agent tells it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentInterface {
    pub name: String,
    pub mac: Option<String>,
    pub addresses: Vec<String>,
}

/// What the guest agent says about the guest's interfaces. (`Domain::interface_addresses` does not give back the memory.)
pub fn agent_interfaces(domain: &Domain) -> Result<Vec<AgentInterface>, Error> {
    let mut rows: *mut sys::virDomainInterfacePtr = std::ptr::null_mut();
    let source = sys::VIR_DOMAIN_INTERFACE_ADDRESSES_SRC_AGENT;
    // SAFETY: a living domain object, and a place for the answer.
    let count = unsafe { sys::virDomainInterfaceAddresses(domain.as_ptr(), &raw mut rows, source, 0) };
    let count = usize::try_from(count).map_err(|_| Error::last_error())?;
    let mut told = Vec::with_capacity(count);
    for at in 0..count {
        // SAFETY: libvirt gives `count` pointers to whole rows, each with `naddrs` addresses; both become ours to free.
        unsafe {
            let row = *rows.add(at);
            let addresses = 0..(*row).naddrs as usize;
            told.push(AgentInterface {
                name: text((*row).name).unwrap_or_default(),
                mac: text((*row).hwaddr),
                addresses: addresses.filter_map(|n| text((*(*row).addrs.add(n)).addr)).collect(),
            });
            sys::virDomainInterfaceFree(row);
        }
    }
    // SAFETY: the array is of malloc, and nobody has it but us.
    unsafe { nix::libc::free(rows.cast()) };
    Ok(told)
}

/// One lease that a network's DHCP server gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DhcpLease {
    pub mac: String,
    pub address: String,
    /// Seconds since 1970, by the host's clock; 0 is never.
    pub expires_at: i64,
}

/// The leases of a network, in one call: of one interface, or of all.
pub fn dhcp_leases(network: &Network, mac: Option<&CStr>) -> Result<Vec<DhcpLease>, Error> {
    let mut rows: *mut sys::virNetworkDHCPLeasePtr = std::ptr::null_mut();
    let mac = mac.map_or(std::ptr::null(), CStr::as_ptr);
    // SAFETY: a living network object, a text that outlives the call or null, and a place for the answer.
    let count = unsafe { sys::virNetworkGetDHCPLeases(network.as_ptr(), mac, &raw mut rows, 0) };
    let count = usize::try_from(count).map_err(|_| Error::last_error())?;
    let mut told = Vec::with_capacity(count);
    for at in 0..count {
        // SAFETY: libvirt gives `count` pointers to whole rows, which become ours to free.
        unsafe {
            let row = *rows.add(at);
            if let (Some(mac), Some(address)) = (text((*row).mac), text((*row).ipaddr)) {
                told.push(DhcpLease { mac, address, expires_at: (*row).expirytime });
            }
            sys::virNetworkDHCPLeaseFree(row);
        }
    }
    // SAFETY: the array is of malloc, and nobody has it but us.
    unsafe { nix::libc::free(rows.cast()) };
    Ok(told)
}

/// # Safety
/// Null, or a text of C.
unsafe fn text(ptr: *const std::os::raw::c_char) -> Option<String> {
    // SAFETY: as the caller says.
    (!ptr.is_null()).then(|| unsafe { CStr::from_ptr(ptr) }.to_string_lossy().into_owned())
}

/// `virDomainState` and the reason that belongs to it. (`Domain::state` takes a failure for a state.)
pub fn domain_state(domain: &Domain) -> Result<(u32, i32), Error> {
    let (mut state, mut reason) = (-1, -1);
    // SAFETY: a living domain object, and two places for the answer.
    let result = unsafe { sys::virDomainGetState(domain.as_ptr(), &raw mut state, &raw mut reason, 0) };
    match (result, u32::try_from(state)) {
        (0, Ok(state)) => Ok((state, reason)),
        _ => Err(Error::last_error()),
    }
}
