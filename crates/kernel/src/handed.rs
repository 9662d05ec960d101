//! A userfaultfd for a program that may not open one. A descriptor of the device
//! (`/dev/userfaultfd`, Linux 6.1) goes to a stopped thread of the program through a socket
//! (unix(7), SCM_RIGHTS). The thread asks the device for a userfaultfd for its own memory
//! (USERFAULTFD_IOC_NEW), and closes the rest.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use quell_types::pages::SideArea;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use crate::error::Result;
use crate::process_memory::{read_memory, write_memory};
use crate::procfs;
use crate::ptrace::{Call, Lent};
use crate::relocate::Process;
use crate::root::Files;

/// The device.
const PATH: &str = "/dev/userfaultfd";
/// `USERFAULTFD_IOC_NEW`.
const NEW: u64 = 0xaa00;

/// Where in the first page of the side area the numbers of the sockets are, two words of 32 bits.
/// Zero before they are there.
const SOCKETS: u64 = 128;
/// Where their inodes are, two words of 64 bits.
const INODES: u64 = 136;
/// `struct msghdr`, `struct iovec`, its byte, and the control data (`struct cmsghdr`, a number).
const MESSAGE: u64 = 192;
const BLOCK: u64 = 256;
const BYTE: u64 = 272;
const CONTROL: u64 = 288;
/// Bytes of the control data: with padding, and without.
const ROOM: u64 = 24;
const WHOLE: u64 = 20;

/// Whether a process needs one that is handed over: it may not open a userfaultfd, or has a filter
/// of system calls that may deny it.
///
/// # Errors
/// [`Error::File`](crate::error::Error::File).
pub fn is_needed(files: &dyn Files, pid: u32) -> Result<bool> {
    const CAP_SYS_PTRACE: u32 = 19;
    let of_all = files.parsed::<u32>("/proc/sys/vm/unprivileged_userfaultfd", "0 or 1")?;
    // Capabilities within a user namespace do not count.
    let users = |process: &str| files.link(&format!("/proc/{process}/ns/user")).ok();
    let capable = || -> Result<bool> {
        let is_ours = users("self") == users(&pid.to_string());
        Ok(is_ours && procfs::is_capable(files, pid, CAP_SYS_PTRACE)?)
    };
    let may = of_all == Some(1) || capable()?;
    Ok(!may || procfs::has_filter(files, pid)?)
}

/// The device, open.
#[derive(Debug)]
pub struct Device(OwnedFd);

impl Device {
    /// Opens it.
    ///
    /// # Errors
    /// The kernel's: ENOENT before Linux 6.1, EACCES.
    pub fn open() -> io::Result<Self> {
        let file = std::fs::File::open(PATH)?;
        Ok(Self(file.into()))
    }

    /// Sends a copy to what holds the other end of a socket.
    fn send(&self, socket: &OwnedFd) -> io::Result<()> {
        let mut room = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut with = SendAncillaryBuffer::new(&mut room);
        let copies = [self.0.as_fd()];
        with.push(SendAncillaryMessage::ScmRights(&copies));
        let data = [io::IoSlice::new(&[1])];
        rustix::net::sendmsg(socket, &data, &mut with, SendFlags::empty())?;
        Ok(())
    }
}

const fn unsigned(n: libc::c_int) -> u64 {
    n.cast_unsigned() as u64
}

/// A pair of sockets.
const fn pair(side: u64) -> Call {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC;
    let arguments = [
        unsigned(libc::AF_UNIX),
        unsigned(kind),
        0,
        side + SOCKETS,
        0,
        0,
    ];
    Call::of(libc::SYS_socketpair, arguments)
}

/// Receives the descriptor.
const fn receive(side: u64, socket: u32) -> Call {
    let flags = unsigned(libc::MSG_CMSG_CLOEXEC | libc::MSG_DONTWAIT);
    let arguments = [socket as u64, side + MESSAGE, flags, 0, 0, 0];
    Call::of(libc::SYS_recvmsg, arguments)
}

/// Makes a userfaultfd.
const fn make(device: u32) -> Call {
    let flags = unsigned(libc::O_CLOEXEC | libc::O_NONBLOCK);
    Call::of(libc::SYS_ioctl, [device as u64, NEW, flags, 0, 0, 0])
}

/// The calls that it takes, with the descriptor of this number, and their names.
pub(crate) const fn calls(side: u64, number: u32) -> [(&'static str, Call); 4] {
    [
        ("socketpair", pair(side)),
        ("recvmsg", receive(side, number)),
        ("ioctl", make(number)),
        ("close_range", Call::close_all(number, number)),
    ]
}

/// Makes a stopped thread open a userfaultfd. Returns its number there.
///
/// # Errors
/// The kernel's, of the call that failed. EPERM where the program may not receive the device.
pub(crate) fn open(
    device: &Device,
    process: &Process,
    thread: &mut Lent<'_>,
    side: &SideArea,
) -> io::Result<u32> {
    thread.call(&pair(side.at))?;
    let made = receive_and_make(device, process, thread, side);
    let sockets = sockets(side).into_iter().flatten();
    let mut left: Vec<u32> = sockets.chain(received(side)).collect();
    left.sort_unstable();
    // The kernel mostly gives numbers that follow each other.
    for group in left.chunk_by(|one, next| one + 1 == *next) {
        if let [first, .., last] | [first @ last] = *group {
            thread.call(&Call::close_all(first, last))?;
        }
    }
    made
}

fn receive_and_make(
    device: &Device,
    process: &Process,
    thread: &mut Lent<'_>,
    side: &SideArea,
) -> io::Result<u32> {
    let refused = || io::Error::from_raw_os_error(libc::EPERM);
    let [own, other] = sockets(side).ok_or_else(refused)?;
    let copies = [process.copy(own)?, process.copy(other)?];
    let mut inodes = [0; 2];
    for (inode, copy) in inodes.iter_mut().zip(&copies) {
        *inode = rustix::fs::fstat(copy)?.st_ino;
    }
    let inodes = inodes.map(u64::to_ne_bytes);
    write_memory(side.task.pid, side.at + INODES, inodes.as_flattened())?;
    device.send(&copies[1])?;
    let message = [0, 0, side.at + BLOCK, 1, side.at + CONTROL, ROOM, 0].map(u64::to_ne_bytes);
    let block = [side.at + BYTE, 1].map(u64::to_ne_bytes);
    write_memory(side.task.pid, side.at + MESSAGE, message.as_flattened())?;
    write_memory(side.task.pid, side.at + BLOCK, block.as_flattened())?;
    thread.call(&receive(side.at, own))?;
    let received = received(side).ok_or_else(refused)?;
    let number = thread.call(&make(received))?;
    Ok(u32::try_from(number).unwrap_or(u32::MAX))
}

/// A descriptor in a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Left {
    /// Its number.
    pub number: u32,
    /// What its link in `/proc/PID/fd` says, while it is this one.
    pub link: String,
}

/// The descriptors that this caller has left, if it died.
#[must_use]
pub fn left(side: &SideArea) -> Vec<Left> {
    let mut inodes = [[0; 8]; 2];
    let read = read_memory(side.task.pid, side.at + INODES, inodes.as_flattened_mut());
    let inodes = inodes.map(u64::from_ne_bytes);
    let known = sockets(side).filter(|_| read.is_ok() && inodes != [0, 0]);
    let sockets = known.into_iter().flatten().zip(inodes);
    let sockets = sockets.map(|(number, inode)| Left {
        number,
        link: format!("socket:[{inode}]"),
    });
    let device = received(side).map(|number| Left {
        number,
        link: PATH.to_owned(),
    });
    sockets.chain(device).collect()
}

fn sockets(side: &SideArea) -> Option<[u32; 2]> {
    let mut both = [0; 8];
    read_memory(side.task.pid, side.at + SOCKETS, &mut both).ok()?;
    let both = [0, 1].map(|n| u32::from_ne_bytes(both.as_chunks::<4>().0[n]));
    (both != [0, 0]).then_some(both)
}

/// The descriptor of the device, where it came. A program may be forbidden to receive it.
fn received(side: &SideArea) -> Option<u32> {
    let mut control = [0; ROOM as usize];
    read_memory(side.task.pid, side.at + CONTROL, &mut control).ok()?;
    let words = control.as_chunks::<4>().0;
    let words: [u32; 6] = std::array::from_fn(|n| u32::from_ne_bytes(words[n]));
    (u64::from(words[0]) == WHOLE).then_some(words[4])
}
