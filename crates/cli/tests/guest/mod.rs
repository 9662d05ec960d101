//! What the tests in the lab share: a virtual machine with this program and an emulated processor,
//! words of its shell, and the roles that this program plays in there.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Duration;

#[path = "../../../lab-plugin/tests/roles/touch.rs"]
pub mod touch;

use quell_lab::Error;
use quell_lab::packages::Packages;
use quell_lab::vm::{Lab, Talk};
use quell_policy::lab::{Accelerator, Guest};

use touch::{LINE, Memory, count, counter};

/// `picture` is of everything that resctrl may show of groups, of the root's registers, and of the
/// processes in `$SUBJECTS`. `affinities` is of the CPUs of processes and interrupts.
const WORDS: &str = r#"
R=/sys/fs/resctrl
role() { export QUELL_LAB_ROLE="$*"; exec "$EXE" $GUEST --exact --ignored --nocapture; }
mask() { sed -n 's/ *L3:0=0*//p' $1/schemata; }
# within SECONDS COMMAND…: true as soon as the command is
within() { n=$(($1 * 10)); shift; until "$@" 2>/dev/null; do n=$((n - 1)); [ $n -gt 0 ] || return 1; usleep 100000; done; }
# Emulated on a busy host a process may be held up for longer than the second that a heartbeat may be late.
# What the last of up to three tries said.
thrice() { "$@" >/tmp/thrice || "$@" >/tmp/thrice || "$@" >/tmp/thrice; set -- $?; cat /tmp/thrice; return $1; }
# register CPU NUMBER: its bytes, the lowest first
register() { echo $(dd if=/dev/cpu/$1/msr bs=8 count=1 skip=$(($2)) iflag=skip_bytes 2>/dev/null | od -An -tx1); }
affinities() {
    for pid in $SUBJECTS; do taskset -p $pid; done
    (cd /proc/irq; grep . default_smp_affinity [0-9]*/smp_affinity)
}
picture() {
    grep resctrl /proc/mounts
    for number in 0xc90 0xd10 0xd50; do echo $number $(register 0 $number); done
    affinities
    for group in $R $R/*; do
        [ -e $group/tasks ] && for file in schemata mode cpus_list; do echo $group/$file $(cat $group/$file); done
    done
    for pid in $SUBJECTS; do echo $(cat /proc/$pid/cpu_resctrl_groups); done
}
before() { picture >/tmp/before; }
gone() { ! pidof quell >/dev/null; }
restored() { picture >/tmp/after; cmp -s /tmp/before /tmp/after; }
# tell WORD: whether all is as it was before, and what is not
tell() { restored && echo "$1 restored" || echo "$1" $(diff /tmp/before /tmp/after); }
said() { sed 's/^/said /' /tmp/log; }
# dies WORD POLICY POINT: a run that is killed at this journal boundary; false where it has ended before. Tried again where a guest that
# stood still has ended it otherwise.
dies() {
    for try in 1 2 3; do
        QUELL_FAULT=$3 quell run $2 -- true >/tmp/log 2>&1; status=$?
        within 30 gone; within 5 restored
        case $status in 0|137) break;; esac
        said
    done
    tell "$1 $3 $status"
    [ $status = 137 ]
}
# every POLICY FROM: killed at one boundary after the other, from this one on, until a run ends by itself
every() { point=$2; while dies every $1 $point; do point=$((point + 1)); done; }
"#;

/// Listens, and says it at once: of each line so much that whole plans and schemas do not hide the
/// rest.
#[derive(Default)]
struct Heard {
    text: Vec<u8>,
    said: usize,
}

impl Write for Heard {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.text.extend(bytes);
        while let Some(end) = self.text[self.said..].iter().position(|b| *b == b'\n') {
            let line = String::from_utf8_lossy(&self.text[self.said..][..end]);
            println!("{}", line.chars().take(200).collect::<String>());
            self.said += end + 1;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// What the guest wrote.
pub struct Said(pub String);

impl Said {
    /// The rest of each line that begins with a word.
    pub fn all(&self, key: &str) -> Vec<&str> {
        let words = self.0.lines();
        words
            .filter_map(|l| l.strip_prefix(key)?.strip_prefix(' '))
            .collect()
    }

    /// The rest of the first of them; nothing where there is none.
    pub fn one(&self, key: &str) -> &str {
        self.all(key).first().copied().unwrap_or_default()
    }

    /// That all was restored wherever a run of `every` was killed, and when it ended by itself; at
    /// which boundary it was killed last.
    pub fn every(&self) -> usize {
        let all = self.all("every");
        let (last, killed) = all.split_last().unwrap();
        for death in killed {
            assert!(death.ends_with(" 137 restored"), "{death}");
        }
        assert!(last.ends_with(" 0 restored"), "{last}");
        assert!(!killed.is_empty(), "nobody was killed");
        println!("killed at {} boundaries", killed.len());
        from() - 1 + killed.len()
    }
}

/// The boundary at which `every` begins: 1, or `QUELL_FROM`, to go on where a run was broken off.
pub fn from() -> usize {
    std::env::var("QUELL_FROM").map_or(1, |from| from.parse().unwrap())
}

/// Boots a kernel on an emulated processor and has it run a script; `None`, said aloud, where the
/// lab cannot be had.
#[track_caller]
pub fn says(kernel: &str, profile: &str, script: &str, timeout: Duration) -> Option<Said> {
    let guest = Guest {
        kernel: kernel.to_owned(),
        profile: Some(profile.to_owned()),
        ..Guest::default()
    };
    says_on(guest, script, timeout)
}

/// The same for any machine.
#[track_caller]
pub fn says_on(mut guest: Guest, script: &str, timeout: Duration) -> Option<Said> {
    let exe = std::env::current_exe().unwrap().display().to_string();
    guest.with.push(exe.clone());
    let module = std::panic::Location::caller().file();
    let module = Path::new(module).file_stem().unwrap().display();
    let given = format!("export EXE={exe} GUEST={module}::guest\n");
    boot(guest, &format!("{given}{script}"), timeout)
}

/// The same for any machine, without this program.
pub fn boot(mut guest: Guest, script: &str, timeout: Duration) -> Option<Said> {
    if !cfg!(target_arch = "x86_64") {
        quell_testing::skip("its packages are for x86-64");
        return None;
    }
    if guest.accelerator != Accelerator::Counted {
        guest.accelerator = Accelerator::Tcg;
    }
    guest
        .with
        .push(format!("{}=/bin/quell", env!("CARGO_BIN_EXE_quell")));
    let lab = Lab {
        guest,
        timeout: Some(timeout),
        console: Some("/dev/null".into()),
        command: ["sh", "-c", &format!("{WORDS}{script}")]
            .map(str::to_owned)
            .to_vec(),
        ..Lab::default()
    };
    let packages = Packages::new(|line| eprintln!("{line}")).unwrap();
    let (mut output, mut errors) = (Heard::default(), Heard::default());
    let talk = Talk {
        output: &mut output,
        errors: &mut errors,
        stop: &mut || None,
    };
    let done = lab.run(&packages, talk);
    match done {
        Ok(_) => Some(Said(String::from_utf8_lossy(&output.text).into_owned())),
        Err(Error::Unavailable(reason)) => {
            quell_testing::skip(reason);
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// What this program is to be inside the virtual machine: a word, and numbers.
pub fn role() -> (String, Vec<usize>) {
    let role = std::env::var("QUELL_LAB_ROLE").unwrap();
    let mut words = role.split(' ');
    let name = words.next().unwrap().to_owned();
    (name, words.map(|word| word.parse().unwrap()).collect())
}

/// Where `sweep` tells how often it has gone through its memory.
const PASSES: &str = "/tmp/passes";

/// Does something again and again, and tells so for [`swept`].
pub fn forever(mut pass: impl FnMut()) -> ! {
    for passes in 1u64.. {
        pass();
        fs::write(PASSES, passes.to_string()).unwrap();
    }
    unreachable!()
}

/// Writes so many bytes again and again.
pub fn sweep(size: usize) -> ! {
    let mut memory = Memory::new(size);
    forever(|| memory.write())
}

/// Waits until the sweep has gone through its memory once more, whole.
pub fn swept() {
    let from = passes();
    while passes() < from + 2 {
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn passes() -> u64 {
    loop {
        // Empty between being cut and being written.
        if let Ok(passes) = fs::read_to_string(PASSES).unwrap().trim().parse() {
            return passes;
        }
    }
}

/// Walks through lines in an order of no pattern, once to have them and then so many times: misses
/// of the last level per access of the time with the fewest, by this thread's counter. Before each,
/// a stream beside it has gone through four times the cache. What else runs in the guest, Quell
/// among it, drives lines out in one time or the other.
pub fn list(size: usize, times: usize, beside: bool) {
    const CACHE_MISSES: u64 = 3;
    let memory = Memory::new(size);
    let lines = size / LINE;
    let mut counter = counter(CACHE_MISSES, 0);
    let mut fewest = u64::MAX;
    for time in 0..=times {
        if beside {
            swept();
        }
        let before = count(&mut counter);
        for n in 0..lines {
            // An odd factor visits every line of a power of two.
            memory.load(n.wrapping_mul(0x9e37_79b1) % lines * LINE);
        }
        if time > 0 {
            fewest = fewest.min(count(&mut counter) - before);
        }
    }
    let home = fs::read_to_string("/proc/self/cpu_resctrl_groups").unwrap();
    let group = home
        .lines()
        .next()
        .unwrap()
        .trim_start_matches("res:")
        .trim_matches('/');
    let occupancy = format!("/sys/fs/resctrl/{group}/mon_data/mon_L3_00/llc_occupancy");
    println!(
        "misses {} occupancy {}",
        fewest as f64 / lines as f64,
        fs::read_to_string(occupancy).unwrap().trim()
    );
}

/// The number behind a word of what `list` and the like print.
pub fn figure(said: &str, word: &str) -> f64 {
    let mut words = said.split(' ').skip_while(|w| *w != word).skip(1);
    let number = words.next().and_then(|number| number.parse().ok());
    number.unwrap_or_else(|| panic!("no {word} in {said:?}"))
}
