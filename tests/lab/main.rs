//! On hypervisor hosts of our own: sshd, libvirtd and QEMU, in namespaces of this machine (`scripts/lab`). Each run brings
//! its hosts up itself and they go with it. Where there can be none (no root), the tests say so and pass;
//! `LAB_MUST_RUN=1` makes that a failure.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "all of this is test code, also outside test functions")]

mod conforms;
mod faults;
mod held;
mod hypervisor;
mod kit;
mod life;
mod rounds;
mod scripted;
mod smoke;
mod stalls;
mod transfers;
