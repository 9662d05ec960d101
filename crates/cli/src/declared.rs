//! The address map that a person has declared for this machine: kept in the directory of what was
//! found out, next to what was measured.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use quell_linux::colours::Declared;
use quell_linux::colours::stored::Stored;
use quell_plan::inventory::Inventory;
use quell_types::address::{BankMap, published};
use quell_types::partition::MapOrigin;

use crate::exit::{Result, failed, usage};

/// The name that stands for the map that was recovered.
pub const RECOVERED: &str = "recovered";

/// The file.
pub fn path() -> Option<PathBuf> {
    crate::state::state_dir().map(|dir| dir.join("address-map.json"))
}

/// Where a machine of the lab whose processor has banks says which line lies in which.
const OF_THE_LAB: &str = "/lab/address-map.txt";

/// The map that holds on this machine. `None` where none is declared. The error says why one that
/// is declared does not hold. A machine of the lab that has banks declares them itself.
pub fn find(machine: &Inventory) -> std::result::Result<Option<Declared>, String> {
    let Some(path) = path() else { return Ok(None) };
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(of_the_lab()),
        Err(e) => return Err(format!("the address map {}: {e}", path.display())),
    };
    let stored = Stored::parse(&text).and_then(|stored| stored.on(machine));
    stored.map(Some).map_err(|why| {
        format!(
            "the address map {} is not used: {why}; declare the right one (quell colours map), or `quell colours map --forget`",
            path.display()
        )
    })
}

fn of_the_lab() -> Option<Declared> {
    let text = std::fs::read_to_string(OF_THE_LAB).ok()?;
    Some(Declared {
        origin: MapOrigin::Lab,
        from: OF_THE_LAB.to_owned(),
        about: None,
        map: BankMap::parse(&text).ok()?,
        sets: None,
    })
}

/// The map that a name or a file stands for: the name of a published one, or a file.
pub fn read(name: &str) -> Result<Declared> {
    if let Some(map) = published::named(name) {
        return Ok(Declared {
            origin: MapOrigin::Published,
            about: Some(map.about()),
            from: map.name,
            map: map.map,
            sets: map.sets,
        });
    }
    let text = quell_files::text(Path::new(name), quell_files::MOST_TEXT).map_err(|e| {
        usage(format!(
            "{name}: {e}; it is no published map either (quell colours map --list names them)"
        ))
    })?;
    let map = BankMap::parse(&text).map_err(|e| usage(format!("{name}: {e}")))?;
    Ok(Declared {
        origin: MapOrigin::Declared,
        from: name.to_owned(),
        about: None,
        map,
        sets: None,
    })
}

/// The map that timing has recovered of this machine (`quell doctor --deep --address-map`).
pub fn recovered(machine: &Inventory) -> Result<Declared> {
    let deep = machine.measured.as_ref().and_then(|m| m.deep.as_ref());
    let seen = deep.and_then(|deep| deep.address_map.as_ref());
    let seen = seen.ok_or_else(|| {
        usage("no address map was recovered here; `quell doctor --deep --address-map` tries it")
    })?;
    let map = seen.map().ok_or_else(|| {
        usage("timing could not tell this machine's address map (quell doctor says why); declare it: quell colours map FILE")
    })?;
    let figures = &seen.found.figures;
    let (together, apart) = (figures.together, figures.apart);
    Ok(Declared {
        origin: MapOrigin::Recovered,
        from: RECOVERED.to_owned(),
        about: Some(format!(
            "{} of {} new pairs of lines took the time that it says",
            together.right + apart.right,
            together.of + apart.of
        )),
        map,
        sets: None,
    })
}

/// Keeps a map as that of this machine.
pub fn keep(machine: &Inventory, map: Declared) -> Result<PathBuf> {
    let path = path().ok_or_else(|| failed("no directory to keep it in: set QUELL_STATE_DIR"))?;
    let text = Stored::new(machine, map).text().map_err(failed)?;
    crate::state::write_whole(&path, &text)
        .map_err(|e| failed(format!("{} cannot be written: {e}", path.display())))?;
    Ok(path)
}

/// Forgets the map. False where there was none.
pub fn forget() -> Result<bool> {
    let Some(path) = path() else { return Ok(false) };
    removed(&path).map_err(|e| failed(format!("{} cannot be removed: {e}", path.display())))
}

fn removed(path: &Path) -> std::io::Result<bool> {
    match std::fs::remove_file(path) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}
