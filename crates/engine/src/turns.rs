//! Decisions about processes that take turns, as rows of `samples/turns.csv`, and back.

use quell_control::work::Work;
use quell_record::quanta::{Chance, Quantum};
use quell_types::units::Nanos;

/// The file of the decisions.
pub const TURNS: &str = "samples/turns.csv";
/// Its first line. `group` is the place of the process's group among those that take turns, by
/// their names. The columns from `cpu_ns` to `first_level` are what the process had done so far,
/// empty where that is not counted. `cpu` is empty where it waits.
pub(crate) const TURNS_HEAD: &str =
    "at_ns,seed,member,group,cpu_ns,cycles,instructions,memory_lines,first_level,cpu";
/// The most rows of a record: five hours of a dozen processes at 200 ms, some 80 MB.
pub(crate) const MOST_TURNS: u64 = 1_000_000;

/// The rows of a decision at `at_ns` on the record's clock: one for each process, or one without a
/// process.
pub(crate) fn rows(at_ns: u64, quantum: &Quantum) -> Vec<String> {
    let begin = format!("{at_ns},{}", quantum.seed);
    if quantum.chances.is_empty() {
        return vec![format!("{begin},,,,,,,,")];
    }
    let row = |chance: &Chance| {
        let did = chance.did.map_or(",,,,".to_owned(), |did| {
            format!(
                "{},{},{},{},{}",
                did.cpu_ns, did.cycles, did.instructions, did.memory, did.first_level
            )
        });
        let cpu = chance.cpu.map_or(String::new(), |cpu| cpu.to_string());
        format!("{begin},{},{},{did},{cpu}", chance.member, chance.group)
    };
    quantum.chances.iter().map(row).collect()
}

/// The decisions of a file. `None` where it is no such file.
#[must_use]
pub fn read(text: &str) -> Option<Vec<Quantum>> {
    let mut lines = text.lines();
    if lines.next() != Some(TURNS_HEAD) {
        return None;
    }
    let mut quanta: Vec<Quantum> = Vec::new();
    for line in lines {
        let fields: Vec<&str> = line.split(',').collect();
        let [at, seed, member, group, did @ .., cpu] = fields.as_slice() else {
            return None;
        };
        let (at, seed) = (Nanos(at.parse().ok()?), seed.parse().ok()?);
        if quanta.last().is_none_or(|q| (q.at, q.seed) != (at, seed)) {
            let chances = Vec::new();
            quanta.push(Quantum { at, seed, chances });
        }
        if member.is_empty() {
            continue;
        }
        quanta.last_mut()?.chances.push(Chance {
            member: member.parse().ok()?,
            group: group.parse().ok()?,
            did: work(did)?,
            cpu: match cpu.is_empty() {
                true => None,
                false => Some(cpu.parse().ok()?),
            },
        });
    }
    Some(quanta)
}

/// What a process had done. The inner `None`: that was not counted. The outer one: it is not that.
fn work(fields: &[&str]) -> Option<Option<Work>> {
    if fields == [""; 5] {
        return Some(None);
    }
    let numbers: Option<Vec<u64>> = fields.iter().map(|field| field.parse().ok()).collect();
    let [cpu_ns, cycles, instructions, memory, first_level] = numbers?[..] else {
        return None;
    };
    Some(Some(Work {
        cpu_ns,
        cycles,
        instructions,
        memory,
        first_level,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decisions_are_read_as_they_were_written() {
        let did = Work {
            cpu_ns: 1,
            cycles: 2,
            instructions: 3,
            memory: 4,
            first_level: 5,
        };
        let chance = |member, did, cpu| Chance {
            member,
            group: 1,
            did,
            cpu,
        };
        let quantum = |at, chances| Quantum {
            at: Nanos(at),
            seed: u64::MAX,
            chances,
        };
        let quanta = [
            quantum(
                7,
                vec![chance(1, Some(did), None), chance(2, None, Some(3))],
            ),
            quantum(8, Vec::new()),
            quantum(9, vec![chance(2, None, None)]),
        ];
        let rows = quanta.iter().flat_map(|q| rows(q.at.0, q));
        let rows: Vec<String> = rows.collect();
        let text = format!("{TURNS_HEAD}\n{}\n", rows.join("\n"));
        assert_eq!(read(&text).unwrap(), quanta);
        for broken in [
            "",
            "at_ns\n",
            &text.replace(",1,2,3,", ",1,,3,"),
            &text.replace("8,", "x,"),
        ] {
            assert_eq!(read(broken), None, "{broken}");
        }
    }
}
