//! Memory of other programs: what one shares with Quell (`docs/client.md`, "byte by byte"), and an
//! instruction that one runs in the lab.

use std::cell::Cell;
use std::fs::File;
use std::os::unix::fs::FileExt;

use quell_client::Reader;
use quell_client::layout::SIZE;
use quell_lab::emul::Operand;

/// Three looks: at nothing, at the input, and at the input after a further unit.
pub fn session(input: &[u8]) -> Result<bool, String> {
    let mut reader = Reader::create(None).unwrap();
    let file = File::from(reader.file().try_clone_to_owned().unwrap());
    let mut units = Vec::new();
    let _ = reader.read(|| 1 << 40, &mut units);
    // The first line is Quell's; a program could write there, too.
    let input = &input[..input.len().min(SIZE)];
    file.write_all_at(input, 0).unwrap();
    for now in [1 << 40, 1 << 41, u64::MAX] {
        units.clear();
        let _ = reader.read(|| now, &mut units);
        let _ = (reader.owner(), reader.demand());
        if units.len() > 1024 {
            return Err(format!("{} units in one look", units.len()));
        }
        if units.iter().any(|unit| unit.ended_ns > now) {
            return Err(format!("a unit that ends after {now}: {units:?}"));
        }
        if !units.is_sorted_by_key(|unit| unit.ended_ns) {
            return Err(format!("time goes back: {units:?}"));
        }
    }
    Ok(true)
}

/// The prefix of a 64-bit instruction, and what follows the operation.
pub fn operand(input: &[u8]) -> Result<bool, String> {
    let Some((&rex, rest)) = input.split_first() else {
        return Ok(false);
    };
    let Some(operand) = Operand::parse(rex, rest) else {
        return Ok(false);
    };
    // A register is asked for by a number that the processor has.
    let unknown = Cell::new(None);
    let _ = operand.address(|n| {
        if n >= 16 {
            unknown.set(Some(n));
        }
        u64::MAX - u64::from(n)
    });
    if let Some(n) = unknown.get() {
        return Err(format!("register {n} of {operand:?}"));
    }
    match Operand::unpack(operand.pack()) {
        again if again == operand => Ok(true),
        again => Err(format!("{operand:?} becomes {again:?}")),
    }
}
