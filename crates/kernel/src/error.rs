//! Failures of kernel files, reported so that a person can act on them: path, content tried, the
//! kernel's reason, remedy.

use std::fmt;
use std::io;

use quell_record::backend::BackendError;

/// A failure at the kernel's interface.
#[derive(Debug)]
pub enum Error {
    /// A file could not be read, written, made or removed.
    File {
        /// What was tried, as a verb (`read`, `write`, `make`, `remove`).
        action: &'static str,
        /// The path, from the root that is worked on.
        path: String,
        /// The content that was tried. `None` except for writes.
        tried: Option<String>,
        /// The kernel's reason, with its error number.
        source: io::Error,
        /// What to do about it. `None` where that is not known.
        remedy: Option<String>,
    },
    /// A file was read and does not have the documented content.
    Malformed {
        /// The path of the file.
        path: String,
        /// The content that was found, shortened to 80 characters.
        content: String,
        /// What was expected, in words.
        wanted: String,
    },
    /// Something that was asked for is not available here.
    Refused {
        /// What is refused, and why, in words.
        what: String,
        /// What to do about it. `None` where that is not known.
        remedy: Option<String>,
    },
}

/// Result of everything in this crate that touches the kernel.
pub type Result<T> = std::result::Result<T, Error>;

/// The longest piece of a malformed file that an error shows, in characters.
const SHOWN: usize = 80;

impl Error {
    /// A failed action on a path, with the remedy that usually fits the reason.
    #[must_use]
    pub fn file(action: &'static str, path: &str, tried: Option<&str>, source: io::Error) -> Self {
        let remedy = remedy(path, &source);
        Self::File {
            action,
            path: path.to_owned(),
            tried: tried.map(|t| t.trim().to_owned()),
            source,
            remedy,
        }
    }

    /// A file whose content is not as documented.
    #[must_use]
    pub fn malformed(path: &str, content: &str, wanted: impl Into<String>) -> Self {
        let mut shown: String = content.trim().chars().take(SHOWN).collect();
        if shown.len() < content.trim().len() {
            shown.push('…');
        }
        Self::Malformed {
            path: path.to_owned(),
            content: shown,
            wanted: wanted.into(),
        }
    }

    /// A refusal without a remedy.
    #[must_use]
    pub fn refused(what: impl Into<String>) -> Self {
        Self::Refused {
            what: what.into(),
            remedy: None,
        }
    }

    /// A refusal with what to do about it.
    #[must_use]
    pub fn refused_with(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Refused {
            what: what.into(),
            remedy: Some(remedy.into()),
        }
    }

    /// The kernel's error number. `None` where the error is not from the kernel.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::File { source, .. } => source.raw_os_error(),
            _ => None,
        }
    }
}

/// What usually helps, by reason and path. `None` where nothing general can be said.
fn remedy(path: &str, source: &io::Error) -> Option<String> {
    let cgroup =
        path.starts_with("/sys/fs/cgroup") || path.contains("cgroup.") || path.contains("cpuset.");
    let text = match source.raw_os_error()? {
        libc::EACCES | libc::EPERM => {
            "run as root (it needs CAP_DAC_OVERRIDE, CAP_SYS_ADMIN and CAP_SYS_PTRACE, and CAP_SYS_NICE for the CPUs of threads)"
        }
        libc::EROFS => {
            "the mount is read-only: inside a container, let it have its own writable cgroup mount"
        }
        libc::EBUSY if path.ends_with("cgroup.subtree_control") => {
            "a cgroup with processes of its own cannot give controllers to children: start Quell outside of it"
        }
        libc::EBUSY if cgroup => {
            "a child cgroup or a running task still uses what would be taken away"
        }
        libc::ENOSPC if cgroup => "give the cgroup CPUs and memory nodes first",
        libc::ENOSPC => "free space on that file system",
        libc::EINVAL if path.ends_with("/cgroup.procs") || path.ends_with("/tasks") => {
            "the kernel does not let this task in: a v1 cpu cgroup takes real-time tasks only with a cpu.rt_runtime_us of \
             its own (make the task ordinary first: chrt --other --pid 0 TASK), and bound kernel threads stay where they are"
        }
        libc::EOPNOTSUPP if cgroup => {
            "a cgroup in thread mode (cgroup.type) holds threads of its domain alone: use one outside of it"
        }
        libc::EMFILE | libc::ENFILE => "raise the limit of open files (ulimit -n)",
        _ => return None,
    };
    Some(text.to_owned())
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let remedy = match self {
            Self::File {
                action,
                path,
                tried,
                source,
                remedy,
            } => {
                match tried {
                    Some(text) => write!(f, "cannot {action} '{text}' to {path}: {source}")?,
                    None => write!(f, "cannot {action} {path}: {source}")?,
                }
                remedy.as_ref()
            }
            Self::Malformed {
                path,
                content,
                wanted,
            } => {
                write!(f, "{path} reads '{content}', which is not {wanted}")?;
                None
            }
            Self::Refused { what, remedy } => {
                f.write_str(what)?;
                remedy.as_ref()
            }
        };
        match remedy {
            Some(remedy) => write!(f, "; {remedy}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::File { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl From<Error> for BackendError {
    fn from(error: Error) -> Self {
        Self(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_tells_path_content_reason_and_remedy() {
        let error = Error::file(
            "write",
            "/sys/fs/cgroup/cpuset/a/tasks",
            Some("17\n"),
            io::Error::from_raw_os_error(libc::ENOSPC),
        );
        assert_eq!(
            error.to_string(),
            "cannot write '17' to /sys/fs/cgroup/cpuset/a/tasks: No space left on device (os error 28); \
             give the cgroup CPUs and memory nodes first"
        );
    }

    #[test]
    fn malformed_content_is_shortened() {
        let error = Error::malformed("/proc/x", &"y".repeat(500), "a number");
        assert!(error.to_string().len() < 160);
    }
}
