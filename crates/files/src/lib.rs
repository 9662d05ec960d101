//! The files that Quell writes for people and reads from them, as root among other users: policies,
//! records, pages, captures.
//!
//! A path is walked from its beginning, folder by folder, by descriptors. As root, Quell goes
//! through folders and links of root and of who called sudo only: whoever owns any other could lead
//! it elsewhere. The last part is never followed when root writes it, but for `/dev/stdout` and the
//! like. It is a file of those users or a new one.

mod input;
mod output;
mod walk;

pub use input::{MOST_RECORD, MOST_TEXT, read, read_within, text, text_within};
pub use output::{append, create, folder, own_folder, put, replace, write};
