//! How decoded frames reach the display stage: slots in memory that both processes map, and
//! messages that hand a slot over and back.
//!
//! The memory is a sealed `memfd`: it cannot be made smaller under the reader. It is sent over a
//! unix socket with a name in the abstract namespace. These are kernel objects without a path. They
//! are gone with the last process that has them.
//!
//! | from | message | says |
//! |---|---|---|
//! | call | `[frame bytes, slots, 0]` with the descriptor | once |
//! | call | `[slot, number, captured]` | the slot is yours |
//! | display | `[slot]` | it is yours again |

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::Error;

/// The most frames on their way to the display.
pub(super) const SLOTS: usize = 3;
/// The most displays of one run.
const MOST_DISPLAYS: usize = 8;
/// Bytes of the largest frame that is accepted from another process.
const MOST_FRAME: usize = 64 << 20;

/// A mapping of the shared memory.
#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the mapping is owned alone; moving it to another thread moves that ownership.
unsafe impl Send for Mapping {}

impl Mapping {
    fn new(fd: BorrowedFd<'_>, len: usize, protection: ProtFlags) -> rustix::io::Result<Self> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                len,
                protection,
                MapFlags::SHARED,
                fd,
                0,
            )?
        };
        let start = NonNull::new(start.cast::<u8>()).ok_or(Errno::NOMEM)?;
        Ok(Self { start, len })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours alone; no reference into it outlives a call of ours.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// The call stage's end: the slots, and one more frame that is not displayed.
#[derive(Debug)]
pub(super) struct Slots {
    fd: OwnedFd,
    map: Mapping,
    frame: usize,
}

impl Slots {
    /// Takes and touches memory for frames of `frame` bytes.
    ///
    /// # Errors
    /// When the kernel refuses the memory.
    pub(super) fn new(frame: usize) -> Result<Self, Error> {
        let what = "taking memory to be shared with the display stage (memfd)";
        let failed = |e: Errno| Error::kernel(what)(e);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("quell-frames", flags).map_err(failed)?;
        let len = (SLOTS + 1) * frame;
        rustix::fs::ftruncate(&fd, len as u64).map_err(failed)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(failed)?;
        let map = Mapping::new(fd.as_fd(), len, ProtFlags::READ | ProtFlags::WRITE);
        let map = map.map_err(failed)?;
        for at in (0..len).step_by(4096) {
            // SAFETY: `at` lies inside the mapping, which no other code refers to yet.
            unsafe { map.start.as_ptr().add(at).write_volatile(0) };
        }
        Ok(Self { fd, map, frame })
    }

    /// Where a slot begins. `None` is the frame that is not displayed.
    pub(super) fn at(&self, slot: Option<usize>) -> *mut u8 {
        let slot = slot.filter(|s| *s < SLOTS).unwrap_or(SLOTS);
        // SAFETY: there are SLOTS + 1 frames in the mapping.
        unsafe { self.map.start.as_ptr().add(slot * self.frame) }
    }

    /// Searches for a display that has no call yet.
    pub(super) fn connect(&self, point: &str) -> Option<ToDisplay> {
        (0..MOST_DISPLAYS).find_map(|n| {
            let socket = socket().ok()?;
            rustix::net::connect(&socket, &address(point, n).ok()?).ok()?;
            ours(&socket).ok()?;
            let hello = [self.frame as u64, SLOTS as u64, 0];
            let fds = [self.fd.as_fd()];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            control.push(SendAncillaryMessage::ScmRights(&fds));
            let bytes = to_bytes(hello);
            let flags = SendFlags::NOSIGNAL;
            rustix::net::sendmsg(&socket, &[IoSlice::new(&bytes)], &mut control, flags).ok()?;
            Some(ToDisplay {
                socket,
                free: (0..SLOTS).collect(),
            })
        })
    }
}

/// A display, as the call stage sees it.
#[derive(Debug)]
pub(super) struct ToDisplay {
    socket: OwnedFd,
    free: Vec<usize>,
}

impl ToDisplay {
    /// A slot to decode into, if the display has handed one back.
    ///
    /// # Errors
    /// When the display has ended.
    pub(super) fn slot(&mut self) -> Result<Option<usize>, Errno> {
        let mut bytes = [0; 8];
        loop {
            match rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Ok((_, 8)) => {
                    let slot = usize::try_from(u64::from_le_bytes(bytes)).unwrap_or(SLOTS);
                    // A slot handed back twice would be written while it is read.
                    if slot < SLOTS && !self.free.contains(&slot) {
                        self.free.push(slot);
                    }
                }
                Ok(_) => return Err(Errno::PIPE),
                Err(Errno::AGAIN) => return Ok(self.free.last().copied()),
                Err(Errno::INTR) => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Hands a slot over to the display.
    ///
    /// # Errors
    /// When the display has ended.
    pub(super) fn show(&mut self, slot: usize, number: u64, captured: u64) -> Result<(), Errno> {
        let bytes = to_bytes([slot as u64, number, captured]);
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::send(&self.socket, &bytes, flags)?;
        self.free.retain(|free| *free != slot);
        Ok(())
    }
}

/// The display's end before there is a call.
#[derive(Debug)]
pub(super) struct Listener {
    socket: OwnedFd,
}

impl Listener {
    /// Takes the first free name.
    ///
    /// # Errors
    /// When no name is free.
    pub(super) fn new(point: &str) -> Result<Self, Error> {
        let what = "waiting for a call stage (abstract unix socket)";
        for n in 0..MOST_DISPLAYS {
            let socket = socket().map_err(Error::kernel(what))?;
            let address = address(point, n).map_err(Error::kernel(what))?;
            match rustix::net::bind(&socket, &address) {
                Ok(()) => {
                    rustix::net::listen(&socket, 1).map_err(Error::kernel(what))?;
                    return Ok(Self { socket });
                }
                Err(Errno::ADDRINUSE) => {}
                Err(e) => return Err(Error::kernel(what)(e)),
            }
        }
        Err(Error::refused(
            what,
            format!("{MOST_DISPLAYS} display stages wait already under '{point}'"),
            "run fewer display stages",
        ))
    }

    /// The call that has connected, if there is one.
    pub(super) fn accept(&self) -> Option<FromCall> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::accept_with(&self.socket, flags).ok()?;
        ours(&socket).ok()?;
        Some(FromCall {
            socket,
            map: None,
            frame: 0,
        })
    }

    /// The socket, to be polled for a call.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A frame that was handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handed {
    /// The slot that it lies in.
    pub(super) slot: usize,
    /// The number of the frame.
    pub(super) number: u64,
    /// When it was captured, in nanoseconds of the monotonic clock.
    pub(super) captured: u64,
}

/// A call, as the display sees it.
#[derive(Debug)]
pub(super) struct FromCall {
    socket: OwnedFd,
    map: Option<Mapping>,
    frame: usize,
}

impl FromCall {
    /// The newest frame handed over since the last call of this. Older ones are handed back unseen.
    ///
    /// # Errors
    /// When the call has ended, or names memory that does not exist.
    pub(super) fn newest(&mut self) -> Result<Option<Handed>, Errno> {
        let mut newest: Option<Handed> = None;
        loop {
            match self.receive() {
                Ok(Some(handed)) => {
                    if let Some(old) = newest.replace(handed) {
                        self.give_back(old.slot)?;
                    }
                }
                Ok(None) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(newest),
                Err(e) => return Err(e),
            }
        }
    }

    fn receive(&mut self) -> Result<Option<Handed>, Errno> {
        let mut bytes = [0; 24];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let got = rustix::net::recvmsg(&self.socket, &mut slices, &mut control, flags)?;
        let fd = control.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut fds) => fds.next(),
            _ => None,
        });
        if got.bytes != bytes.len() {
            return Err(Errno::PIPE);
        }
        let (fields, _) = bytes.as_chunks::<8>();
        let [first, second, third] = [0, 1, 2].map(|i| u64::from_le_bytes(fields[i]));
        match (fd, &self.map) {
            (Some(fd), None) => {
                self.frame = usize::try_from(first).unwrap_or(usize::MAX);
                if self.frame > MOST_FRAME || second != SLOTS as u64 {
                    return Err(Errno::INVAL);
                }
                let len = SLOTS * self.frame;
                // Sealed and large enough: reading cannot fault, whatever the other process does.
                let sealed = rustix::fs::fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK);
                let size = usize::try_from(rustix::fs::fstat(&fd)?.st_size).unwrap_or(0);
                if !sealed || size < len {
                    return Err(Errno::INVAL);
                }
                self.map = Some(Mapping::new(fd.as_fd(), len, ProtFlags::READ)?);
                Ok(None)
            }
            (None, Some(_)) => {
                let slot = usize::try_from(first).unwrap_or(SLOTS);
                let handed = Handed {
                    slot,
                    number: second,
                    captured: third,
                };
                (slot < SLOTS).then_some(Some(handed)).ok_or(Errno::INVAL)
            }
            _ => Err(Errno::INVAL),
        }
    }

    /// The bytes of a slot: where they begin, and how many there are.
    pub(super) fn at(&self, slot: usize) -> Option<(*const u8, usize)> {
        let map = self.map.as_ref().filter(|_| slot < SLOTS)?;
        // SAFETY: there are SLOTS frames in the mapping.
        let start = unsafe { map.start.as_ptr().add(slot * self.frame) };
        Some((start.cast_const(), self.frame))
    }

    /// Hands a slot back to the call.
    ///
    /// # Errors
    /// When the call has ended.
    pub(super) fn give_back(&self, slot: usize) -> Result<(), Errno> {
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        rustix::net::send(&self.socket, &(slot as u64).to_le_bytes(), flags).map(|_| ())
    }

    /// The socket, to be polled for frames.
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn to_bytes(fields: [u64; 3]) -> [u8; 24] {
    let mut bytes = [0; 24];
    for (to, field) in bytes.chunks_exact_mut(8).zip(fields) {
        to.copy_from_slice(&field.to_le_bytes());
    }
    bytes
}

/// Messages keep their bounds and arrive in order, and the end of the other process is noticed.
fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

fn address(point: &str, n: usize) -> Result<SocketAddrUnix, Errno> {
    SocketAddrUnix::new_abstract_name(format!("{point}-{n}").as_bytes())
}

/// Checks that the other side is a process of the same user: names in the abstract namespace are
/// open to all.
fn ours(socket: &OwnedFd) -> Result<(), Errno> {
    let other = rustix::net::sockopt::socket_peercred(socket)?;
    if other.uid == rustix::process::geteuid() {
        Ok(())
    } else {
        Err(Errno::PERM)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(name: &str) -> String {
        format!("quell-test-{}-{name}", std::process::id())
    }

    fn met(point: &str, frame: usize) -> (Slots, ToDisplay, FromCall) {
        let listener = Listener::new(point).unwrap();
        let slots = Slots::new(frame).unwrap();
        let to = slots.connect(point).unwrap();
        let from = listener.accept().unwrap();
        (slots, to, from)
    }

    #[test]
    fn a_frame_is_seen_on_the_other_side_and_its_slot_comes_back() {
        let (slots, mut to, mut from) = met(&point("seen"), 8192);
        let slot = to.slot().unwrap().unwrap();
        // SAFETY: a slot has 8192 bytes.
        unsafe { slots.at(Some(slot)).write_bytes(42, 8192) };
        to.show(slot, 5, 99).unwrap();
        let handed = from.newest().unwrap().unwrap();
        assert_eq!((handed.slot, handed.number, handed.captured), (slot, 5, 99));
        let (start, len) = from.at(handed.slot).unwrap();
        // SAFETY: the slot is mapped for reading with that length.
        assert_eq!((len, unsafe { start.add(8191).read() }), (8192, 42));
        assert_ne!(to.slot().unwrap(), Some(slot));
        from.give_back(slot).unwrap();
        assert_eq!(to.slot().unwrap(), Some(slot));
    }

    #[test]
    fn a_display_that_stands_still_takes_three_frames() {
        let (_slots, mut to, mut from) = met(&point("still"), 4096);
        let mut shown = 0;
        for number in 0..10 {
            if let Some(slot) = to.slot().unwrap() {
                to.show(slot, number, 0).unwrap();
                shown += 1;
            }
        }
        assert_eq!(shown, SLOTS);
        assert_eq!(from.newest().unwrap().unwrap().number, SLOTS as u64 - 1);
        assert!(to.slot().unwrap().is_some(), "the older ones came back");
    }

    #[test]
    fn either_side_notices_that_the_other_is_gone() {
        let (slots, mut to, from) = met(&point("gone"), 4096);
        drop(from);
        let slot = to.slot();
        assert!(slot.is_err() || to.show(0, 0, 0).is_err());
        drop((slots, to));
        let (slots, to, mut from) = met(&point("gone"), 4096);
        from.newest().unwrap();
        drop((slots, to));
        assert!(from.newest().is_err());
    }

    #[test]
    fn calls_and_displays_pair_up() {
        let point = point("pairs");
        let (first, second) = (
            Listener::new(&point).unwrap(),
            Listener::new(&point).unwrap(),
        );
        let slots = Slots::new(4096).unwrap();
        let _one = slots.connect(&point).unwrap();
        assert!(first.accept().is_some());
        drop(first);
        let _two = slots.connect(&point).unwrap();
        assert!(second.accept().is_some());
        drop(second);
        assert!(slots.connect(&point).is_none());
    }
}
