//! Processes that have just begun a program, as the kernel reports them (the process events
//! connector, `linux/cn_proc.h`).
//!
//! The kernel reports to processes with `CAP_NET_ADMIN` in the first namespaces for users, process
//! ids and networks. Since Linux 6.6 only the kinds that are asked for are sent. A filter of the
//! socket drops the others before, and names of threads: a thread can change its name without end.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags};
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, send, socket_with,
    sockopt,
};

/// `CN_IDX_PROC` and `CN_VAL_PROC`: the connector's address, and its multicast group.
const PROC: u32 = 1;
/// `NLMSG_DONE`.
const DONE: u16 = 3;
/// `PROC_CN_MCAST_LISTEN` and `PROC_CN_MCAST_IGNORE`.
const LISTEN: u32 = 1;
const IGNORE: u32 = 2;
/// Kinds of event (`enum proc_cn_event`).
const ACKNOWLEDGED: u32 = 0;
const EXEC: u32 = 0x2;
const COMM: u32 = 0x200;
/// `struct nlmsghdr`, then `struct cn_msg` without its data.
const HEADERS: usize = 16 + 20;
/// Within `struct proc_event`: where what is particular to its kind begins.
const DATA: usize = 16;
/// How long the kernel may take to answer.
const ANSWER: Duration = Duration::from_millis(200);
/// Reports that are fetched at a time.
const MOST: usize = 1000;
/// Bytes of events that may wait: some 6,000 events.
const BUFFER: usize = 1 << 20;

/// The kernel's reports of programs that begin.
#[derive(Debug)]
pub struct Births {
    socket: OwnedFd,
    /// Whether processes that change their name are reported.
    names: bool,
}

impl Births {
    /// Asks the kernel for its reports.
    ///
    /// # Errors
    /// Where the kernel refuses, or does not answer: then it has no such reports
    /// (`CONFIG_PROC_EVENTS`), or not for this namespace.
    pub fn listen() -> io::Result<Self> {
        let socket = socket_with(
            AddressFamily::NETLINK,
            SocketType::DGRAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            Some(netlink::CONNECTOR),
        )?;
        bind(&socket, &SocketAddrNetlink::new(0, PROC))?;
        // The limit of the system does not apply to root. Without it, more reports are dropped.
        let _ = sockopt::set_socket_recv_buffer_size_force(&socket, BUFFER);
        let births = Self {
            socket,
            names: true,
        };
        // Kernels before 6.6 know the first form only, and ignore the second.
        send(&births.socket, &request(&[LISTEN]), SendFlags::empty())?;
        births.acknowledged()?;
        births.filter()?;
        send(
            &births.socket,
            &request(&[LISTEN, EXEC | COMM]),
            SendFlags::empty(),
        )?;
        Ok(births)
    }

    /// Waits for the kernel's answer.
    fn acknowledged(&self) -> io::Result<()> {
        let timeout = rustix::time::Timespec::try_from(ANSWER).map_err(io::Error::other)?;
        let mut buffer = [0; 512];
        loop {
            let mut poll = [PollFd::new(&self.socket, PollFlags::IN)];
            if rustix::event::poll(&mut poll, Some(&timeout))? == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::Unsupported,
                    "the kernel does not report processes here",
                ));
            }
            let read = match recv(&self.socket, &mut buffer, RecvFlags::empty()) {
                Ok((read, _)) => read,
                Err(rustix::io::Errno::NOBUFS | rustix::io::Errno::AGAIN) => continue,
                Err(e) => return Err(e.into()),
            };
            if let Some((ACKNOWLEDGED, error)) = event(buffer.get(..read).unwrap_or_default()) {
                return match i32::try_from(error) {
                    Ok(0) => Ok(()),
                    Ok(code) => Err(io::Error::from_raw_os_error(code)),
                    Err(_) => Err(io::Error::other("the kernel refuses to report processes")),
                };
            }
        }
    }

    /// Processes that began a program or changed their name since the last time, at most [`MOST`]
    /// reports. The kernel drops reports that nobody fetches in time. Once it did, or there were
    /// that many, names are no more reported: a program begins less often than it can change its
    /// name.
    #[must_use]
    pub fn fetch(&mut self) -> BTreeSet<u32> {
        let mut born = BTreeSet::new();
        let mut buffer = [0; 512];
        let mut flooded = true;
        for _ in 0..MOST {
            match recv(&self.socket, &mut buffer, RecvFlags::empty()) {
                Ok((read, _)) => {
                    if let Some((EXEC | COMM, pid)) = event(buffer.get(..read).unwrap_or_default())
                    {
                        born.insert(pid);
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::NOBUFS) => break,
                Err(_) => {
                    flooded = false;
                    break;
                }
            }
        }
        if flooded && std::mem::replace(&mut self.names, false) {
            // What cannot be filtered is fetched, as before.
            let _ = self.filter();
        }
        born
    }

    /// Has the kernel drop all reports but answers, programs that begin, and, with
    /// [`Self::names`], names of the first threads of processes.
    fn filter(&self) -> io::Result<()> {
        const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
        const IS: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        const IS_X: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_X;
        const TO_X: u32 = libc::BPF_MISC | libc::BPF_TAX;
        const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
        let step = |code: u32, (jt, jf): (u8, u8), k: u32| libc::sock_filter {
            code: code as u16,
            jt,
            jf,
            k,
        };
        // Words are loaded as the network has them.
        let kind = |kind: u32| kind.to_be();
        let at = |offset: usize| (HEADERS + offset) as u32;
        let next = (0, 0);
        let comm = if self.names { kind(COMM) } else { kind(EXEC) };
        let mut program = [
            step(LOAD, next, at(0)),
            step(IS, (6, 0), kind(ACKNOWLEDGED)),
            step(IS, (5, 0), kind(EXEC)),
            step(IS, (0, 5), comm),
            step(LOAD, next, at(DATA)),
            step(TO_X, next, 0),
            step(LOAD, next, at(DATA + 4)),
            step(IS_X, (0, 1), 0),
            step(RETURN, next, u32::MAX),
            step(RETURN, next, 0),
        ];
        let all = libc::sock_fprog {
            len: program.len() as u16,
            filter: program.as_mut_ptr(),
        };
        // SAFETY: the kernel copies the program, which lives until the call is over.
        let done = unsafe {
            libc::setsockopt(
                self.socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_FILTER,
                (&raw const all).cast(),
                size_of_val(&all) as libc::socklen_t,
            )
        };
        match done {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl Drop for Births {
    fn drop(&mut self) {
        // Kernels before 6.6 count listeners, and do not see that one has closed its socket.
        let _ = send(&self.socket, &request(&[IGNORE]), SendFlags::empty());
    }
}

impl AsFd for Births {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A request to the connector.
fn request(words: &[u32]) -> Vec<u8> {
    let data: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let length = HEADERS + data.len();
    let mut message = Vec::with_capacity(length);
    message.extend(u32::try_from(length).unwrap_or_default().to_ne_bytes());
    message.extend(DONE.to_ne_bytes());
    // Flags, sequence number, and the sender, which the kernel fills in.
    message.extend([0; 2 + 4 + 4]);
    message.extend(PROC.to_ne_bytes());
    message.extend(PROC.to_ne_bytes());
    message.extend([0; 4 + 4]);
    message.extend(u16::try_from(data.len()).unwrap_or_default().to_ne_bytes());
    message.extend([0; 2]);
    message.extend(data);
    message
}

/// The kind of an event. With it the process that it is about, or the error of an answer.
fn event(message: &[u8]) -> Option<(u32, u32)> {
    let word = |at: usize| {
        let bytes = message.get(HEADERS + at..HEADERS + at + 4)?;
        Some(u32::from_ne_bytes(bytes.try_into().ok()?))
    };
    let kind = word(0)?;
    // For a program or a name: the thread, then its process.
    let at = if kind == ACKNOWLEDGED { DATA } else { DATA + 4 };
    Some((kind, word(at)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;
    use std::time::Instant;

    fn message(kind: u32, data: &[u32]) -> Vec<u8> {
        let mut bytes = vec![0; HEADERS];
        bytes.extend(kind.to_ne_bytes());
        bytes.extend([0; 12]);
        bytes.extend(data.iter().flat_map(|word| word.to_ne_bytes()));
        bytes
    }

    #[test]
    fn an_event_names_the_process_and_not_its_thread() {
        assert_eq!(event(&message(EXEC, &[71, 70])), Some((EXEC, 70)));
        assert_eq!(event(&message(COMM, &[71, 70])), Some((COMM, 70)));
        assert_eq!(event(&message(ACKNOWLEDGED, &[1])), Some((0, 1)));
    }

    #[test]
    fn a_short_message_is_no_event() {
        let whole = message(EXEC, &[71, 70]);
        for length in 0..whole.len() {
            assert_eq!(event(&whole[..length]), None, "{length} bytes");
        }
    }

    #[test]
    fn a_request_says_its_length_twice() {
        let request = request(&[LISTEN, EXEC]);
        assert_eq!(request.len(), 44);
        assert_eq!(request[..4], 44_u32.to_ne_bytes());
        assert_eq!(request[32..34], 8_u16.to_ne_bytes());
    }

    /// What is reported of what happens, and for a fifth of a second after that.
    fn reported(births: &mut Births, meanwhile: impl FnOnce()) -> BTreeSet<u32> {
        let mut all = births.fetch();
        meanwhile();
        for _ in 0..20 {
            std::thread::sleep(Duration::from_millis(10));
            all.extend(births.fetch());
        }
        all
    }

    #[test]
    fn names_without_end_keep_no_births_from_being_told() {
        let mut births = match Births::listen() {
            Ok(births) => births,
            Err(e) => return quell_testing::skip(format!("no reports of processes: {e}")),
        };
        let shell = |script: &str| Command::new("sh").args(["-c", script]).spawn().unwrap();
        let own = std::process::id();
        let threads = reported(&mut births, || {
            let renamed = || std::fs::write("/proc/thread-self/comm", "other").unwrap();
            std::thread::spawn(renamed).join().unwrap();
        });
        assert!(!threads.contains(&own), "a thread's name");
        let mut hostile = shell("while :; do echo a >/proc/$$/comm; done");
        let begun = Instant::now();
        while births.names && begun.elapsed() < Duration::from_secs(30) {
            std::thread::sleep(Duration::from_millis(300));
            let _ = births.fetch();
        }
        assert!(!births.names, "no flood of names");
        while !births.fetch().is_empty() {}
        let mut late = None;
        let told = reported(&mut births, || late = Some(shell(":")));
        let mut late = late.unwrap();
        hostile.kill().unwrap();
        hostile.wait().unwrap();
        late.wait().unwrap();
        assert!(told.contains(&late.id()), "a birth is told");
        assert!(!told.contains(&hostile.id()), "a name is not");
    }
}
