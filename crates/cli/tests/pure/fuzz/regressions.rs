//! Inputs that once failed, by target. They are tried before all others.

/// A task's number again and again.
const TASKS: [u8; 16_384] = {
    let mut text = [b' '; 16_384];
    let mut at = 0;
    while at < text.len() {
        text[at] = b'1';
        at += 2;
    }
    text
};

#[rustfmt::skip]
pub const REGRESSIONS: &[(&str, &[u8])] = &[
    // A path with quotes or line breaks was written as a key that TOML does not take.
    ("lying_machine", b"\n'\""),
    ("lying_machine", b"0\n/a\nb"),
    // Lists in braces multiply: a line took all memory.
    ("lying_machine", b"0\n/a{0-8191}{0-8191}{0-8191}{0-8191}{0-8191}\n0"),
    // Every CPU a sibling of every other.
    ("kernel_file", b"0-8191"),
    // Each thread of a tree of cgroups had a copy of the path.
    ("kernel_file", &TASKS),
    // More time than there is room for, in hundredths of a second, and summed.
    ("kernel_file", b"0.446744073709551615"),
    ("kernel_file", b"cpu0 0 0 0 0 0 2036854775808 4"),
    ("lying_machine", b"0\n/sys/devices/system/cpu/cpu{0,16}/topology/thread_siblings_list\n0-8191"),
    // A round beyond all others.
    ("record", b"samples/regulated--neighbour.csv\nround,window,at_ns,\n4294967295,,4,4\n1,,,2"),
    // Beyond 2^53, where floating point loses digits.
    ("sets", b"4294967296600MB/s"),
    ("quantities", b"9007199254740993ns"),
];
