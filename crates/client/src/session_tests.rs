//! The program's side and Quell's side against each other.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use super::*;
use crate::layout::{SIZE, SLOTS};
use crate::listener::Listener;
use crate::reader::{Reader, Seen, Unit};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

fn pair() -> (Reader, Session) {
    let reader = Reader::create(Some(Duration::from_millis(16))).unwrap();
    let session = Session::of(take(reader.file()), PathBuf::new());
    assert!(session.connected());
    (reader, session)
}

fn read(reader: &mut Reader) -> (Vec<Unit>, Seen) {
    let mut units = Vec::new();
    let seen = reader.read(now, &mut units);
    (units, seen)
}

/// The session as a file, to write past the interface.
fn raw(reader: &Reader) -> File {
    File::from(reader.file().try_clone_to_owned().unwrap())
}

fn poke(reader: &Reader, offset: usize, value: u64) {
    raw(reader)
        .write_all_at(&value.to_ne_bytes(), offset as u64)
        .unwrap();
}

#[test]
fn units_arrive_as_they_were_told() {
    let (mut reader, mut session) = pair();
    assert_eq!(session.deadline(), Some(Duration::from_millis(16)));
    session.set_demand(Demand {
        bytes_per_unit: 4096,
        working_set: 1 << 20,
    });
    let before = now();
    session.unit(Duration::from_micros(7));
    session.set_target(Duration::from_millis(9));
    session.begin();
    std::thread::sleep(Duration::from_millis(2));
    session.end();
    // An end without a begin does not count; the first beat only begins a unit.
    session.end();
    session.beat();
    session.beat();
    let (units, seen) = read(&mut reader);
    assert_eq!(seen, Seen::default());
    let [told, frame, beat] = units.as_slice() else {
        panic!("{units:?}")
    };
    assert_eq!((told.took_ns, told.target_ns), (7_000, None));
    assert!(told.ended_ns >= before);
    assert!(frame.took_ns >= 2_000_000 && frame.target_ns == Some(9_000_000));
    assert!(beat.took_ns < frame.took_ns && beat.ended_ns >= frame.ended_ns);
    assert_eq!(reader.demand().bytes_per_unit, 4096);
    assert_eq!(read(&mut reader).0, []);
}

#[test]
fn what_was_overwritten_is_counted_and_the_rest_is_read() {
    let (mut reader, mut session) = pair();
    for round in 0..3u64 {
        for n in 0..SLOTS + 100 {
            session.unit(Duration::from_nanos(round * 10_000 + n));
        }
        let (units, seen) = read(&mut reader);
        assert_eq!((units.len() as u64, seen.lost), (SLOTS, 100));
        assert_eq!(units[0].took_ns, round * 10_000 + 100);
        assert_eq!(units[units.len() - 1].took_ns, round * 10_000 + SLOTS + 99);
    }
}

#[test]
fn a_session_has_one_process_and_changes_once_that_is_gone() {
    let (reader, _session) = pair();
    let file = reader.file();
    assert!(take(file).is_none());
    // A process that has ended: a child that was reaped.
    let mut child = std::process::Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    poke(&reader, at::OWNER, u64::from(child.id()));
    assert!(take(file).is_some());
    // Another process that lives.
    poke(&reader, at::OWNER, 1);
    assert!(take(file).is_none());
}

#[test]
fn what_is_no_session_is_not_touched() {
    let with = |offset, value| {
        let reader = Reader::create(None).unwrap();
        poke(&reader, offset, value);
        take(reader.file()).is_some()
    };
    assert!(with(at::DEADLINE, 5));
    assert!(!with(at::MAGIC, 5));
    assert!(!with(at::VERSION, 2));
    assert!(!with(at::LOOKS, 0), "Quell has let go of it");
    let plain = File::open("/proc/self/exe").unwrap();
    assert!(take(plain.as_fd()).is_none());
    let mut nobody = Session::of(None, PathBuf::from("/no/such/socket"));
    nobody.unit(Duration::from_nanos(1));
    nobody.begin();
    nobody.end();
    nobody.beat();
    nobody.set_demand(Demand::default());
    assert!(!nobody.connected() && nobody.deadline().is_none());
}

#[test]
fn it_cannot_be_cut_short_below_the_reader() {
    let (reader, _session) = pair();
    assert!(raw(&reader).set_len(100).is_err());
    assert!(raw(&reader).set_len(SIZE as u64 + 4096).is_err());
}

#[test]
fn whatever_a_program_writes_is_read_to_an_end_and_counted() {
    let (mut reader, mut session) = pair();
    session.unit(Duration::from_nanos(1));
    read(&mut reader);
    // An impossible count: the read is no longer than the ring, and nothing of it is believed.
    poke(&reader, at::HEAD, u64::MAX);
    let (units, seen) = read(&mut reader);
    assert_eq!((units, seen.lost, seen.strange), (Vec::new(), 0, 1));
    // The count goes back.
    poke(&reader, at::HEAD, 1);
    assert_eq!(read(&mut reader).1.strange, 1);
    // Impossible times.
    session.unit(Duration::from_secs(86_400));
    session.unit(Duration::from_nanos(3));
    let slot = slot_of(3);
    session.unit(Duration::from_nanos(4));
    poke(&reader, slot + slot::ENDED, u64::MAX);
    let (units, seen) = read(&mut reader);
    assert_eq!((units.len(), seen.strange, seen.lost), (1, 2, 0));
    // The time of a unit's end does not go back.
    session.unit(Duration::from_nanos(5));
    poke(&reader, slot_of(4) + slot::ENDED, 17);
    let last = units[0].ended_ns;
    assert_eq!(read(&mut reader).0[0].ended_ns, last);
    // Noise in all words.
    let mut noise = 1u64;
    for _ in 0..50 {
        for offset in (at::OWNER..SIZE).step_by(8) {
            noise = noise
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            poke(&reader, offset, noise >> (noise % 60));
        }
        let (units, _) = read(&mut reader);
        assert!(units.len() as u64 <= SLOTS);
        assert!(units.iter().all(|u| u.ended_ns <= now()));
    }
}

#[test]
fn while_it_is_written_nothing_torn_is_read() {
    let (mut reader, mut session) = pair();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 1..=300_000u64 {
                // Both words say the same.
                session.set_target(Duration::from_nanos(n * 3));
                session.unit(Duration::from_nanos(n));
            }
            done.store(true, Release);
        });
        let (mut read_units, mut lost, mut before) = (0, 0, 0);
        loop {
            let last = done.load(Acquire);
            let (units, seen) = read(&mut reader);
            assert_eq!(seen.strange, 0);
            for unit in &units {
                assert_eq!(unit.target_ns, Some(unit.took_ns * 3));
                assert!(unit.took_ns > before);
                before = unit.took_ns;
            }
            read_units += units.len() as u64;
            lost += seen.lost;
            if last {
                break;
            }
        }
        assert_eq!(read_units + lost, 300_000);
    });
}

/// Makes a second pass, as the session counts it, without waiting.
fn a_second_later(session: &mut Session) {
    session.next_look = session.next_look.min(now());
    session.begin();
}

#[test]
fn who_asks_gets_a_session_and_so_does_who_was_there_before() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("folder/socket");
    // The program starts first, and works without Quell.
    let mut session = Session::of(None, path.clone());
    let demand = Demand {
        bytes_per_unit: 7,
        working_set: 9,
    };
    session.set_demand(demand);
    session.begin();
    session.end();
    assert!(!session.connected() && session.asked.is_none());
    for round in 1..=2 {
        let listener = Listener::open(&path).unwrap();
        assert!(listener.next().unwrap().is_none());
        a_second_later(&mut session);
        let caller = listener.next().unwrap().unwrap();
        assert_eq!(caller.pid(), std::process::id());
        assert!(caller.there());
        let mut reader = Reader::create(Some(Duration::from_millis(round))).unwrap();
        caller.grant(&reader).unwrap();
        // It does not ask again within a second: a unit takes no system call.
        session.begin();
        session.end();
        assert!(!session.connected());
        a_second_later(&mut session);
        assert_eq!(session.deadline(), Some(Duration::from_millis(round)));
        session.end();
        assert_eq!(read(&mut reader).0.len(), 1, "{round}");
        assert_eq!(reader.demand(), demand);
        assert_eq!(reader.owner(), u64::from(std::process::id()));
        // Quell ends, in good order the first time.
        if round == 1 {
            drop(reader);
            assert!(!session.connected());
        } else {
            session.unit(Duration::from_nanos(1));
            assert!(session.connected(), "it has just looked");
            session.open.as_mut().unwrap().since -= GONE_AFTER;
            session.unit(Duration::from_nanos(1));
            assert!(!session.connected());
            assert_eq!(reader.owner(), 0, "given up");
        }
    }
}

#[test]
fn who_is_refused_is_told_why_and_asks_less_often() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let listener = Listener::open(&path).unwrap();
    let mut session = Session::of(None, path);
    for why in [Refused::NoGroup, Refused::Second, Refused::TooMany] {
        a_second_later(&mut session);
        listener.next().unwrap().unwrap().refuse(why);
        a_second_later(&mut session);
        assert_eq!(session.refused(), Some(why));
        assert!(!session.connected());
        assert!(session.next_look > now() + 9 * AGAIN);
    }
    // A program that has hung up gets no answer, which does no harm.
    a_second_later(&mut session);
    let caller = listener.next().unwrap().unwrap();
    assert!(caller.there());
    drop(session);
    assert!(!caller.there());
    assert!(caller.grant(&Reader::create(None).unwrap()).is_err());
}

#[test]
fn a_listener_that_ends_or_answers_nonsense_is_left() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let mut session = Session::of(None, path.clone());
    let listener = Listener::open(&path).unwrap();
    a_second_later(&mut session);
    assert!(session.asked.is_some());
    drop(listener);
    a_second_later(&mut session);
    assert!(session.asked.is_none() && session.refused().is_none());
    // No process listens at the socket that it has left.
    a_second_later(&mut session);
    assert!(session.asked.is_none());
    // A session of another version is not accepted.
    let listener = Listener::open(&path).unwrap();
    a_second_later(&mut session);
    let reader = Reader::create(None).unwrap();
    poke(&reader, at::VERSION, 2);
    listener.next().unwrap().unwrap().grant(&reader).unwrap();
    a_second_later(&mut session);
    assert!(!session.connected());
}

#[test]
fn a_descriptor_that_is_another_file_by_now_is_let_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let _listener = Listener::open(&path).unwrap();
    let mut session = Session::of(None, path);
    a_second_later(&mut session);
    let number = session.asked.as_ref().unwrap().number();
    // A program that becomes a daemon does this, and then opens another file.
    let plain = File::open("/proc/self/exe").unwrap();
    // SAFETY: takes numbers only.
    assert!(unsafe { libc::dup2(plain.as_raw_fd(), number) } >= 0);
    a_second_later(&mut session);
    assert!(session.asked.is_none());
    drop(session);
    // SAFETY: takes numbers only; closes what `dup2` made.
    assert_eq!(unsafe { libc::close(number) }, 0, "it was closed");
}
