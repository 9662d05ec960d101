//! A program that lets whoever reads its arguments wait for ever. Its parent reads a page of its
//! memory, which is in a file of a file system of the user's own (FUSE) that does not answer, and
//! holds the lock of its address space meanwhile (`/proc/PID/mem`). The program asks for memory,
//! and waits for that lock: behind it so does everybody.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use rustix::mount::{MountFlags, UnmountFlags};
use rustix::process::Signal;

use crate::common::{Running, eventually, machine, quell, run};
use crate::gathered::{allowed, busy};

const PAGE: usize = 4096;

/// Answers what the kernel asks before it reads the one file there is, and no read.
fn serve(mut device: File) {
    let mut request = vec![0u8; 1 << 20];
    while let Ok(40..) = device.read(&mut request) {
        let word = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
        let mut answer = Vec::new();
        let mut put = |words: &[u32]| words.iter().for_each(|w| answer.extend(w.to_ne_bytes()));
        // 64-bit fields have their low half first.
        let attributes: [u32; 22] = std::array::from_fn(|n| match n {
            0 => 2,
            2 => PAGE as u32,
            15 => libc::S_IFREG | 0o444,
            16 => 1,
            20 => PAGE as u32,
            _ => 0,
        });
        match word(4) {
            // INIT, LOOKUP, GETATTR, OPEN; a RELEASE and a FLUSH have nothing to say.
            26 => {
                put(&[7, 31, PAGE as u32, 0, 0, PAGE as u32]);
                put(&[0; 10]);
            }
            1 => {
                put(&[2, 0, 0, 0, 60, 0, 60, 0, 0, 0]);
                put(&attributes);
            }
            3 => {
                put(&[60, 0, 0, 0]);
                put(&attributes);
            }
            14 => put(&[0; 4]),
            18 | 25 => {}
            _ => continue,
        }
        let mut whole = u32::try_from(16 + answer.len())
            .unwrap()
            .to_ne_bytes()
            .to_vec();
        whole.extend([0; 4]);
        whole.extend(&request[8..16]);
        whole.extend(answer);
        device.write_all(&whole).unwrap();
    }
}

/// A process of a user without rights, and its parent. Both wait until this process ends.
struct Silent {
    pid: i32,
    parent: i32,
}

impl Silent {
    fn start() -> std::io::Result<Self> {
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        let folder = tempfile::tempdir()?;
        let options = format!(
            "fd={},rootmode=40000,user_id=0,group_id=0",
            device.as_raw_fd()
        );
        let options = std::ffi::CString::new(options)?;
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        rustix::mount::mount(
            "quell-test",
            folder.path(),
            "fuse",
            flags,
            options.as_c_str(),
        )?;
        std::thread::spawn(move || serve(device));
        let file = File::open(folder.path().join("file"));
        rustix::mount::unmount(folder.path(), UnmountFlags::DETACH)?;
        let file = file?;
        let map = |file: i32| {
            let flags = match file {
                -1 => libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                _ => libc::MAP_PRIVATE,
            };
            // SAFETY: a fresh mapping, which nothing here reads.
            unsafe { libc::mmap(std::ptr::null_mut(), PAGE, libc::PROT_READ, flags, file, 0) }
        };
        let page = map(file.as_raw_fd());
        let (mut told, tells) = std::io::pipe()?;
        // SAFETY: both children make system calls on prepared values only.
        let parent = unsafe { libc::fork() };
        if parent == 0 {
            // SAFETY: as above; the path is written before it is read, and ends with a zero.
            unsafe {
                // Who waits for ever keeps no lock, and no end of the file system: that ends with
                // this process, and lets it go.
                libc::dup2(tells.as_raw_fd(), 0);
                libc::syscall(libc::SYS_close_range, 1, i32::MAX, 0);
                libc::setgid(65_534);
                libc::setuid(65_534);
                libc::prctl(libc::PR_SET_DUMPABLE, 1);
                let pid = libc::fork();
                if pid == 0 {
                    // By then it is read.
                    libc::usleep(500_000);
                    map(-1);
                    loop {
                        libc::pause();
                    }
                }
                let mut path = [0u8; 32];
                libc::snprintf(
                    path.as_mut_ptr().cast(),
                    path.len(),
                    c"/proc/%d/mem".as_ptr(),
                    pid,
                );
                let memory = libc::open(path.as_ptr().cast(), libc::O_RDONLY);
                libc::write(0, (&raw const pid).cast(), 4);
                libc::pread(memory, path.as_mut_ptr().cast(), 1, page as libc::off_t);
                libc::_exit(0);
            }
        }
        let mut pid = [0; 4];
        told.read_exact(&mut pid)?;
        std::thread::sleep(Duration::from_secs(1));
        let pid = i32::from_ne_bytes(pid);
        Ok(Self { pid, parent })
    }

    /// Whether it waits for the lock of its address space.
    fn waits(&self) -> bool {
        let state = std::fs::read_to_string(format!("/proc/{}/stat", self.pid));
        state.is_ok_and(|state| state.contains(") D "))
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        for pid in [self.pid, self.parent] {
            // SAFETY: a child, and one of its children, which waits for ever.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
    }
}

#[test]
fn a_program_that_lets_readers_wait_stops_no_run() {
    let Some(mut machine) = machine() else {
        return;
    };
    let silent = match Silent::start() {
        Ok(silent) => silent,
        Err(e) => return quell_testing::skip(format_args!("no file system of users: {e}")),
    };
    if !silent.waits() {
        return quell_testing::skip("who reads memory does not lock it on this kernel");
    }
    let own = busy();
    machine.remember();
    let text = format!(
        "quell = 1\n[group.a]\nrole = 'critical'\ncpus = 1\nmatch = [{{ pid = {} }}]\n\
        [group.b]\nrole = 'best-effort'\nmatch = [{{ arg = 'no-such-word' }}]\n",
        own.pid()
    );
    let policy = machine.file("policy.toml", &text);
    let begun = Instant::now();
    let named = format!("process {} (", silent.pid);
    let planned = run(&["plan", &policy]);
    assert_eq!(planned.code, 0, "{planned:?}");
    assert!(planned.out.contains(&named), "{planned:?}");
    let held = Running::start(quell().args(["run", &policy]));
    eventually("the program has a CPU", || allowed(own.pid()).len() == 1);
    std::thread::sleep(Duration::from_secs(4));
    held.signal(Signal::TERM);
    let done = held.wait();
    assert_eq!(done.code, 0, "{done:?}");
    let all = format!("{}{}", done.out, done.err).replace('\n', " ");
    assert!(
        all.contains(&named) && all.contains("lets whoever reads its arguments wait"),
        "{all}"
    );
    assert!(begun.elapsed() < Duration::from_secs(30));
    machine.unchanged("after the run");
    drop(silent);
}
