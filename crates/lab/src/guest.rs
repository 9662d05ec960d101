//! What the guest consists of: busybox, `pqos`, the wanted modules and programs, and the files from
//! which the init (`guest/init.sh`) reads what to do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use quell_policy::lab::{Guest, Lru, Swap};

use crate::image::Image;
use crate::packages::{Kernel, Packages};
use crate::profile::Profile;
use crate::vm::Lab;
use crate::{Error, arch};

/// The modules behind the ports, in the order of their dependences. Newer kernels have them built
/// in.
const CHANNEL: [&str; 6] = [
    "virtio",
    "virtio_ring",
    "virtio_pci_modern_dev",
    "virtio_pci_legacy_dev",
    "virtio_pci",
    "virtio_console",
];

/// `lab-watch`: whether the emulated processor sees loads, stores and lines. Everything is several
/// times faster where it does not; caches and counters stand still meanwhile.
fn watch() -> Vec<u8> {
    format!(
        r"#!/bin/sh
case $1 in on) value='\1' ;; off) value='\0' ;; *) echo 'lab-watch on|off' >&2; exit 2 ;; esac
printf $value'\0\0\0\0\0\0\0' | dd of=/dev/cpu/0/msr bs=8 seek={} oflag=seek_bytes conv=notrunc 2>/dev/null
",
        crate::emul::WATCH
    )
    .into_bytes()
}

impl Lab {
    /// The guest's file system.
    pub(crate) fn image(
        &self,
        packages: &Packages,
        kernel: &Kernel,
        profile: Option<&Profile>,
    ) -> Result<Image, Error> {
        let mut image = Image::default();
        for folder in [
            "proc", "sys", "dev", "tmp", "run", "out", "root", "disk", "etc", "var/lib", "var/lock",
        ] {
            image.directory(folder);
        }
        image.file("init", 0o755, include_bytes!("../guest/init.sh").to_vec());
        image.file("etc/passwd", 0o644, b"root:x:0:0::/root:/bin/sh\n".to_vec());
        image.file("etc/group", 0o644, b"root:x:0:\n".to_vec());
        let tools = packages.tools()?;
        image.copy(&tools.join("usr/bin/busybox"), "bin/busybox")?;
        let applets = Command::new(tools.join("usr/bin/busybox"))
            .arg("--list")
            .output();
        let applets = applets.map_err(|e| Error::Unavailable(format!("busybox: {e}")))?;
        for applet in String::from_utf8_lossy(&applets.stdout).lines() {
            if applet != "busybox" {
                image.link(&format!("bin/{applet}"), "busybox");
            }
        }
        pqos(&mut image, &tools)?;
        let mut modules = CHANNEL.to_vec();
        if self.guest.disk.is_some() || self.guest.swap == Swap::File {
            modules.push("virtio_blk");
        }
        if profile.is_some() {
            // Tools read registers by it (/dev/cpu/N/msr).
            modules.push("msr");
            image.file("bin/lab-watch", 0o755, watch());
        }
        if self.guest.swap == Swap::Zram {
            modules.extend([
                "zsmalloc",
                "lzo_compress",
                "lzo_decompress",
                "lzo",
                "lzo-rle",
                "lz4_compress",
                "lz4hc_compress",
                "zram",
            ]);
        }
        for module in &modules {
            for name in [format!("{module}.ko"), format!("{module}.ko.xz")] {
                // A module that does not exist is built in.
                if let Some(path) = find(&kernel.modules, &name) {
                    image.copy(&path, &format!("lab/modules/{name}"))?;
                }
            }
        }
        let lru = match self.guest.lru {
            None => "",
            Some(Lru::Classic) => "n",
            Some(Lru::Generations) => "y",
        };
        let swap = match self.guest.swap {
            Swap::None => "",
            Swap::File => "file",
            Swap::Zram => "zram",
        };
        let has_resources = profile.is_some_and(|p| {
            let l3 = p.l3.as_ref().and_then(|s| s.allocation.as_ref());
            p.l2.allocation.is_some() || l3.is_some() || p.mba.is_some() || p.monitoring.is_some()
        });
        let settings = format!(
            "modules='{}' lru='{lru}' disk={} swap='{swap}' swap_mib={} resctrl={} memory_v1={}\n",
            modules.join(" "),
            if self.guest.disk.is_some() {
                "yes"
            } else {
                "no"
            },
            self.guest.swap_size.0 >> 20,
            if has_resources { "yes" } else { "no" },
            if self.guest.memory_v1 { "yes" } else { "no" },
        );
        image.file("lab/settings", 0o644, settings.into_bytes());
        // Paths of the host do not concern the guest.
        let told = Guest {
            with: Vec::new(),
            ..self.guest.clone()
        };
        let told = serde_json::to_string(&told).map_err(|e| Error::Failed(e.to_string()))?;
        image.file("lab/guest.json", 0o644, told.into_bytes());
        if let Some(dram) = profile.and_then(|profile| profile.dram.as_ref()) {
            let map = dram.banks().map_err(Error::Failed)?;
            image.file("lab/address-map.txt", 0o644, String::from(map).into_bytes());
        }
        let mut words = self.command.clone();
        let [first, ..] = &mut words[..] else {
            return Err(Error::Input("no command: give one after --".to_owned()));
        };
        for with in &self.guest.with {
            let (from, place) = with
                .split_once('=')
                .map_or((with.as_str(), None), |(f, p)| (f, Some(p)));
            let named = !from.contains('/') && from != "quell";
            let (from, there) = here(from)?;
            let place = place.unwrap_or(&there);
            // A program found by its name here is available under that name there.
            if named && let Some(name) = Path::new(place).file_name() {
                image.link(&format!("usr/local/bin/{}", name.to_string_lossy()), place);
            }
            if from.is_dir() {
                image.copy(&from, place)?;
            } else {
                image.program(&from, place)?;
            }
        }
        if !["bin", "usr/bin", "usr/local/bin"]
            .iter()
            .any(|dir| image.has(&format!("{dir}/{first}")))
            && !image.has(first)
        {
            let (from, to) = here(first)?;
            image.program(&from, &to)?;
            *first = to;
        }
        let quoted: Vec<_> = words
            .iter()
            .map(|w| format!("'{}'", w.replace('\'', r"'\''")))
            .collect();
        image.file(
            "lab/command",
            0o644,
            format!("exec {}\n", quoted.join(" ")).into_bytes(),
        );
        Ok(image)
    }
}

/// A program or path of this machine, and its path in the guest.
fn here(name: &str) -> Result<(PathBuf, String), Error> {
    if name == "quell" {
        let own =
            std::env::current_exe().map_err(|e| Error::Failed(format!("this program: {e}")))?;
        return Ok((own, "/bin/quell".to_owned()));
    }
    let found = if name.contains('/') {
        Some(PathBuf::from(name))
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path)
            .map(|dir| dir.join(name))
            .find(|path| path.is_file())
    };
    let found = found.filter(|path| path.exists()).ok_or_else(|| {
        Error::Input(format!(
            "{name}: neither the guest has it nor this machine; what it is to have name with --with"
        ))
    })?;
    let found = std::path::absolute(&found)
        .map_err(|e| Error::Input(format!("{}: {e}", found.display())))?;
    let place = found.to_string_lossy().into_owned();
    Ok((found, place))
}

/// `pqos`, together with the C library it was built with. Programs of this machine bring their own.
fn pqos(image: &mut Image, tools: &Path) -> Result<(), Error> {
    for (folder, name) in [
        ("usr/lib", "libpqos.so.6"),
        (arch::LIBRARIES, "libc.so.6"),
        (arch::LIBRARIES, arch::LOADER),
    ] {
        let library = tools.join(folder).join(name);
        image.copy(&library, &format!("lab/pqos/{name}"))?;
    }
    image.copy(&tools.join("usr/sbin/pqos"), "lab/pqos/pqos")?;
    let start = format!(
        "#!/bin/sh\nexec /lab/pqos/{} --library-path /lab/pqos /lab/pqos/pqos --iface=os \"$@\"\n",
        arch::LOADER
    );
    image.file("bin/pqos", 0o755, start.into_bytes());
    Ok(())
}

/// The file with that name in a folder or below it.
fn find(folder: &Path, name: &str) -> Option<PathBuf> {
    let entries = fs::read_dir(folder).ok()?;
    entries.filter_map(Result::ok).find_map(|entry| {
        let path = entry.path();
        if path.is_dir() {
            return find(&path, name);
        }
        (entry.file_name() == name).then_some(path)
    })
}
