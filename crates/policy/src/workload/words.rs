//! The words that select what generators do. Each has its name and its meaning in one place: files,
//! records, help and error messages all take them from here.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One word out of a known list.
pub trait Word: Copy + 'static {
    /// All words, in the order in which they are shown.
    const WORDS: &'static [Self];

    /// The word as it is written.
    fn name(self) -> &'static str;

    /// The meaning of the word, for help.
    fn about(self) -> &'static str;

    /// The word with that name; `None` if there is none.
    fn named(name: &str) -> Option<Self> {
        Self::WORDS.iter().copied().find(|w| w.name() == name)
    }
}

macro_rules! words {
    ($(#[$meta:meta])* $name:ident $(, default $default:ident)? {
        $($variant:ident = $word:literal: $about:literal,)+
    }) => {
        $(#[$meta])*
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
        )]
        pub enum $name {
            $(
                #[doc = $about]
                #[serde(rename = $word)]
                $variant,
            )+
        }

        impl $name {
            /// All values, in the order in which they are shown.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// The word as it is written in experiments and records.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)+
                }
            }
        }

        impl Word for $name {
            const WORDS: &'static [Self] = &Self::ALL;
            fn name(self) -> &'static str {
                self.name()
            }
            fn about(self) -> &'static str {
                match self {
                    $(Self::$variant => $about,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(self.name())
            }
        }

        $(
            impl Default for $name {
                fn default() -> Self {
                    Self::$default
                }
            }
        )?
    };
}
pub(crate) use words;

words! {
    /// The order in which lines are visited.
    Order, default Random {
        Random = "random": "At random: a list is one random cycle through all its lines",
        Sequential = "sequential": "In address order",
    }
}

words! {
    /// The pages memory is taken in.
    Pages, default Base {
        Base = "4KiB": "Base pages; transparent huge pages are switched off for the buffer",
        Huge = "2MiB": "Huge pages",
        Given = "given": "Whatever the kernel gives: the generator asks for neither",
    }
}

words! {
    /// What a stream does to each line.
    Operation {
        Read = "read": "Load",
        Write = "write": "Store (the line is fetched and written back)",
        Copy = "copy": "Load from one half, store to the other",
        NonTemporal = "non-temporal": "Store past the caches",
    }
}

words! {
    /// What a walk does to each node it comes by.
    Access, default Read {
        Read = "read": "Load the pointer to the next node",
        ReadWrite = "read-write": "Load the pointer, and store into the same line",
    }
}

words! {
    /// What is done to a line in the cache.
    Touch {
        Read = "read": "Load a word of it",
        Write = "write": "Store a word of it",
        Prefetch = "prefetch": "Ask for it without waiting",
        WriteBack = "write-back": "Write it back to memory and keep it",
        Flush = "flush": "Write it back to memory and drop it from all caches",
    }
}

words! {
    /// How words are stored.
    Store, default Plain {
        Plain = "plain": "Into the caches",
        NonTemporal = "non-temporal": "Past the caches",
        WriteBack = "write-back": "Into the caches, then each line written back and kept",
        Flush = "flush": "Into the caches, then each line written back and dropped",
    }
}

words! {
    /// How a file is read.
    Reading, default Read {
        Read = "read": "By read(2), through a small buffer",
        Mmap = "mmap": "Mapped, a load from every page",
    }
}

words! {
    /// How often a file is read.
    Passes, default Repeatedly {
        Once = "once": "Every page for the first time: what a pass left in the page cache is dropped before the next one",
        Repeatedly = "repeatedly": "Again and again, whatever the page cache kept",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_reads_as_it_is_written() {
        for store in Store::ALL {
            let json = serde_json::to_string(&store).unwrap();
            assert_eq!(json, format!("\"{store}\""));
            assert_eq!(serde_json::from_str::<Store>(&json).unwrap(), store);
            assert_eq!(Store::named(store.name()), Some(store));
        }
        assert_eq!(Store::named("plane"), None);
    }
}
