//! What the lab is made of, from Debian's packages: QEMU with its libraries, kernels, busybox,
//! `pqos`. They are downloaded by `apt-get` with its own lists and settings, and unpacked into a
//! cache. The system is not changed, nothing is installed, and no privileges are needed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::folder::at;
use crate::{Error, arch};

/// The source of packages, unless `QUELL_LAB_MIRROR` names another.
const MIRROR: &str = "http://deb.debian.org/debian";
/// The suites: the last has the newer QEMU and kernels, the first an older kernel (6.1).
const SUITES: &str = "bookworm trixie trixie-backports";
const BACKPORTS: &str = "trixie-backports";
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// The cache of packages, and the packages in it.
#[derive(Clone, Debug)]
pub struct Packages {
    folder: PathBuf,
    /// Called with a line of text before each slow step.
    progress: fn(&str),
}

/// A kernel that is in the cache.
#[derive(Clone, Debug)]
pub struct Kernel {
    /// The file that is booted.
    pub image: PathBuf,
    /// Its release, as `uname -r` prints it.
    pub release: String,
    /// The folder of its modules.
    pub modules: PathBuf,
}

/// The folder for a lab's packages: `lab` in `$QUELL_CACHE`, else in `quell` in `$XDG_CACHE_HOME`
/// or `~/.cache`.
fn folder() -> Result<PathBuf, Error> {
    let var = |name| {
        std::env::var_os(name)
            .filter(|v| !v.is_empty())
            .map(PathBuf::from)
    };
    let cache = var("QUELL_CACHE")
        .or_else(|| var("XDG_CACHE_HOME").map(|dir| dir.join("quell")))
        .or_else(|| var("HOME").map(|dir| dir.join(".cache/quell")));
    let cache = cache.ok_or_else(|| {
        Error::Input("no folder to keep the lab in: set QUELL_CACHE to one".to_owned())
    })?;
    let lab = cache.join("lab");
    std::path::absolute(&lab).map_err(|e| Error::Input(format!("{}: {e}", lab.display())))
}

impl Packages {
    /// The cache of the user that runs this. `progress` gets a line of text before each slow step.
    ///
    /// # Errors
    /// Where there is no folder for it.
    pub fn new(progress: fn(&str)) -> Result<Self, Error> {
        Ok(Self {
            folder: folder()?,
            progress,
        })
    }

    /// The folder of the cache.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The folder of QEMU, downloaded if need be.
    ///
    /// # Errors
    /// Where it cannot be downloaded.
    pub fn qemu(&self) -> Result<PathBuf, Error> {
        self.have("qemu", |into| {
            let wanted = ["-t", BACKPORTS, arch::EMULATOR_PACKAGE];
            // An interrupted download may have left packages of another release.
            let archives = self.folder.join("apt/archives");
            remove(&archives)?;
            folders(&archives.join("partial"))?;
            // As for a machine without installed packages, so that all libraries come.
            self.apt(
                &[
                    &[
                        "install",
                        "--download-only",
                        "-y",
                        "--no-install-recommends",
                    ][..],
                    &wanted,
                ]
                .concat(),
                None,
            )?;
            unpack(&archives, into)?;
            remove(&archives)
        })
    }

    /// A folder with busybox and `pqos`, downloaded if need be.
    ///
    /// # Errors
    /// Where they cannot be downloaded.
    pub fn tools(&self) -> Result<PathBuf, Error> {
        self.have("tools", |into| {
            self.download(&["busybox-static", "intel-cmt-cat", "libc6"], into)
        })
    }

    /// The newest kernel with a release that begins with `wanted`: `6.12`, `7.2`, `7.2.11`.
    ///
    /// # Errors
    /// Where there is none. Names the existing ones.
    pub fn kernel(&self, wanted: &str) -> Result<Kernel, Error> {
        if wanted.is_empty() || !wanted.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
            return Err(Error::Input(format!(
                "--kernel {wanted}: give the beginning of a release such as 6.12 or 7.2"
            )));
        }
        let root = self.have(&format!("kernel-{wanted}"), |into| {
            let known = self.kernels()?;
            let fits = |release: &&String| {
                let version = release.split('+').next().unwrap_or_default();
                version == wanted || version.starts_with(&format!("{wanted}."))
            };
            // A release may be listed and gone from the mirror by now. Then the one before it is
            // used.
            let fitting: Vec<_> = known.iter().filter(fits).take(3).collect();
            let mut last = None;
            for release in &fitting {
                // Since 7.0 a kernel is two packages, and the image's own is empty.
                let image = [format!("linux-image-{release}")];
                let parts = [
                    format!("linux-binary-{release}"),
                    format!("linux-modules-{release}"),
                ];
                for packages in [&parts[..], &image[..]] {
                    let names: Vec<_> = packages.iter().map(String::as_str).collect();
                    match self.download(&names, into) {
                        Ok(()) => return Ok(()),
                        Err(e) => last = Some(e),
                    }
                }
            }
            Err(last.unwrap_or_else(|| {
                let mut versions: Vec<_> =
                    known.iter().filter_map(|r| r.split('+').next()).collect();
                versions.dedup();
                Error::Input(format!(
                    "--kernel {wanted}: there are {}",
                    versions.join(", ")
                ))
            }))
        })?;
        // Bookworm's kernels have them where they were before /usr was merged.
        let places = ["usr/lib/modules", "lib/modules"].map(|place| root.join(place));
        let place = places.iter().find(|place| place.exists());
        let modules = place.and_then(|place| list(place).ok()?.pop());
        let release = modules
            .as_ref()
            .and_then(|m| m.file_name()?.to_str().map(str::to_owned));
        let (Some(modules), Some(release)) = (modules, release) else {
            let reason = "no kernel in it; delete it and try again";
            return Err(Error::Failed(format!("{}: {reason}", root.display())));
        };
        // With its modules since 7.0.
        let beside = modules.join("vmlinuz");
        let image = if beside.exists() {
            beside
        } else {
            root.join(format!("boot/vmlinuz-{release}"))
        };
        Ok(Kernel {
            image,
            release,
            modules,
        })
    }

    /// The kernels for virtual machines that the mirror has, the newest first.
    fn kernels(&self) -> Result<Vec<String>, Error> {
        let said = self.run("apt-cache", &["pkgnames", "linux-image-"], None)?;
        let releases = said
            .lines()
            .filter_map(|line| line.strip_prefix("linux-image-"));
        let mut releases: Vec<_> = releases
            .filter(|r| r.starts_with(|c: char| c.is_ascii_digit()) && r.ends_with(arch::KERNEL))
            .map(str::to_owned)
            .collect();
        let number = |release: &String| -> Vec<u32> {
            let numbers = release.split(|c: char| !c.is_ascii_digit());
            let numbers = numbers.filter_map(|n| n.parse().ok());
            numbers.take(4).collect()
        };
        releases.sort_by_key(|release| std::cmp::Reverse(number(release)));
        Ok(releases)
    }

    /// A part of the cache, made if it does not exist. A part that is only half made is not kept.
    fn have(
        &self,
        name: &str,
        make: impl FnOnce(&Path) -> Result<(), Error>,
    ) -> Result<PathBuf, Error> {
        let place = self.folder.join(name);
        if place.exists() {
            return Ok(place);
        }
        // One at a time: two labs may start together.
        let _alone = self.alone()?;
        if place.exists() {
            return Ok(place);
        }
        (self.progress)(&format!(
            "lab: fetching {name} into {}",
            self.folder.display()
        ));
        let half = self.folder.join(format!("{name}.new"));
        remove(&half)?;
        folders(&half)?;
        self.lists()?;
        make(&half)?;
        fs::rename(&half, &place).map_err(|e| at(&half, e))?;
        Ok(place)
    }

    fn alone(&self) -> Result<fs::File, Error> {
        folders(&self.folder)?;
        let path = self.folder.join("lock");
        let file = fs::File::create(&path).map_err(|e| at(&path, e))?;
        rustix::fs::flock(&file, rustix::fs::FlockOperation::LockExclusive)
            .map_err(|e| at(&path, e.into()))?;
        Ok(file)
    }

    /// Updates the mirror's lists, once an hour at most.
    fn lists(&self) -> Result<(), Error> {
        let apt = self.folder.join("apt");
        let fresh = apt.join("fresh");
        let age = fs::metadata(&fresh).and_then(|m| m.modified()).ok();
        if age
            .and_then(|t| t.elapsed().ok())
            .is_some_and(|age| age.as_secs() < 3600)
        {
            return Ok(());
        }
        if !Path::new(KEYS).exists() {
            return Err(Error::Unavailable(format!(
                "{KEYS} is missing, by which packages are checked: install debian-archive-keyring"
            )));
        }
        folders(&apt.join("lists/partial"))?;
        let env = |name, default: &str| std::env::var(name).unwrap_or_else(|_| default.to_owned());
        let sources = format!(
            "Types: deb\nURIs: {}\nSuites: {}\nComponents: main\nSigned-By: {KEYS}\n",
            env("QUELL_LAB_MIRROR", MIRROR),
            SUITES,
        );
        write(&apt.join("lab.sources"), &sources)?;
        write(&apt.join("status"), "")?;
        // Without the option a mirror that does not answer is no failure.
        self.apt(&["update", "-o", "APT::Update::Error-Mode=any"], None)?;
        write(&fresh, "")
    }

    fn apt(&self, arguments: &[&str], within: Option<&Path>) -> Result<(), Error> {
        self.run("apt-get", arguments, within).map(|_| ())
    }

    fn run(
        &self,
        program: &str,
        arguments: &[&str],
        within: Option<&Path>,
    ) -> Result<String, Error> {
        let apt = self.folder.join("apt");
        let path = |name: &str| apt.join(name).display().to_string();
        let mut command = Command::new(program);
        for option in [
            format!("Dir::Etc::sourcelist={}", path("lab.sources")),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            format!("Dir::State::lists={}", path("lists")),
            format!("Dir::State::status={}", path("status")),
            format!("Dir::Cache={}", apt.display()),
            format!("Dir::Cache::archives={}", path("archives")),
            format!("APT::Architecture={}", arch::DEBIAN),
            format!("APT::Architectures={}", arch::DEBIAN),
            "APT::Sandbox::User=root".to_owned(),
            // Nothing is installed here: the lock is this program's own.
            "Debug::NoLocking=true".to_owned(),
        ] {
            command.arg("-o").arg(option);
        }
        command.args(arguments).stdin(Stdio::null());
        if let Some(folder) = within {
            command.current_dir(folder);
        }
        let what = format!("{program} {}", arguments.join(" "));
        let said = command.output().map_err(|e| {
            Error::Unavailable(format!(
                "{program}: {e}; the lab is made from Debian's packages, by apt-get and dpkg-deb"
            ))
        })?;
        if said.status.success() {
            return Ok(String::from_utf8_lossy(&said.stdout).into_owned());
        }
        let why = String::from_utf8_lossy(&said.stderr);
        let why = why
            .lines()
            .rfind(|l| l.starts_with("E:"))
            .unwrap_or("no reason given");
        Err(Error::Unavailable(format!("{what}: {why}")))
    }

    /// Downloads and unpacks packages, without their dependences.
    fn download(&self, names: &[&str], into: &Path) -> Result<(), Error> {
        let archives = into.join("archives");
        remove(&archives)?;
        folders(&archives)?;
        self.apt(&[&["download"], names].concat(), Some(&archives))?;
        unpack(&archives, into)?;
        remove(&archives)
    }
}

/// Unpacks all packages of a folder.
fn unpack(archives: &Path, into: &Path) -> Result<(), Error> {
    for package in list(archives)? {
        if package.extension().is_none_or(|e| e != "deb") {
            continue;
        }
        let said = Command::new("dpkg-deb")
            .arg("-x")
            .args([&package, into])
            .output();
        let said = said.map_err(|e| Error::Unavailable(format!("dpkg-deb: {e}")))?;
        if !said.status.success() {
            let why = String::from_utf8_lossy(&said.stderr).into_owned();
            return Err(Error::Failed(format!("{}: {why}", package.display())));
        }
    }
    Ok(())
}

fn list(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = fs::read_dir(folder).map_err(|e| at(folder, e))?;
    let paths = entries.map(|entry| entry.map(|e| e.path()));
    paths.collect::<Result<_, _>>().map_err(|e| at(folder, e))
}

fn folders(path: &Path) -> Result<(), Error> {
    fs::create_dir_all(path).map_err(|e| at(path, e))
}

fn write(path: &Path, text: &str) -> Result<(), Error> {
    fs::write(path, text).map_err(|e| at(path, e))
}

fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(at(path, e)),
        _ => Ok(()),
    }
}
