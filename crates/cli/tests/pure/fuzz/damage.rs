//! How a valid input is damaged.

use quell_types::rng::Rng;

/// What breaks parsers: numbers at and past their limits, lists without end, separators without
/// anything between.
const NASTY: &[&str] = &[
    "",
    " ",
    "\n",
    "\n\n",
    "\t",
    "\0",
    ",",
    "-",
    "0-",
    "-0",
    "-1",
    "0,,1",
    "0-4294967295",
    "0-8191",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775808",
    "99999999999999999999999999999999",
    "0.0000000001",
    "1e309",
    "1e-400",
    "nan",
    "inf",
    "max",
    "0x",
    "0xffffffffffffffff",
    "ffffffff,ffffffff",
    "é",
    "\u{202e}",
    "\u{1b}[2J",
    "%s",
    "../..",
    "/",
    "\"",
    "'",
    "'''",
    "[",
    "]",
    "[[",
    "{",
    "}",
    "{}",
    "{0-8191}",
    "=",
    "#",
    "\\",
    "\\,",
    "\\u{",
    "(",
    ")",
    ":",
    "::",
    ";",
    "|",
    "K",
    "%",
    "ns",
    "TiB",
    "MB/s",
    "999999999999999999999999GB/s",
    "0.5 LLC",
    "true",
    "null",
    "1979-05-27T07:32:00Z",
    "<script>",
];

/// Where damaged inputs come from.
pub struct Damage {
    rng: Rng,
}

impl Damage {
    pub fn new(rng: Rng) -> Self {
        Self { rng }
    }

    /// A number below `bound`; 0 for 0.
    pub fn below(&mut self, bound: usize) -> usize {
        self.rng.below(u32::try_from(bound.max(1)).unwrap()) as usize
    }

    pub fn once_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// One of these, damaged one to four times.
    pub fn of(&mut self, all: &[Vec<u8>]) -> Vec<u8> {
        let mut input = all[self.below(all.len())].clone();
        for _ in 0..=self.below(4) {
            self.damage(&mut input, all);
        }
        input
    }

    /// A place, and the end of a piece that begins there.
    fn piece(&mut self, input: &[u8], most: usize) -> std::ops::Range<usize> {
        let at = self.below(input.len() + 1);
        let length = 1 + self.below(most);
        at..(at + length).min(input.len())
    }

    fn nasty(&mut self) -> &'static [u8] {
        NASTY[self.below(NASTY.len())].as_bytes()
    }

    fn damage(&mut self, input: &mut Vec<u8>, all: &[Vec<u8>]) {
        match self.below(12) {
            // A bit of a byte.
            0 if !input.is_empty() => {
                let at = self.below(input.len());
                input[at] ^= 1 << self.below(8);
            }
            // A byte.
            1 if !input.is_empty() => {
                let at = self.below(input.len());
                input[at] = [0, 0xff, 0x80, b'0', b'9', b' '][self.below(6)];
            }
            2 => {
                let piece = self.piece(input, 20);
                input.drain(piece);
            }
            3 | 4 => {
                let at = self.below(input.len() + 1);
                let nasty = self.nasty();
                input.splice(at..at, nasty.iter().copied());
            }
            5 => {
                let (piece, nasty) = (self.piece(input, 8), self.nasty());
                input.splice(piece, nasty.iter().copied());
            }
            // A number.
            6 | 7 => {
                let (number, nasty) = (self.number(input), self.nasty());
                input.splice(number, nasty.iter().copied());
            }
            // The same piece again, seldom often.
            8 => {
                let piece = self.piece(input, 80);
                let (at, piece) = (piece.end, input[piece].to_vec());
                let times = if self.once_in(4) {
                    1 + self.below(200)
                } else {
                    1
                };
                input.splice(at..at, piece.repeat(times));
            }
            9 => {
                let at = self.below(input.len() + 1);
                let many = 1 + self.below(3000);
                let what = [b'9', b'[', b'(', b'a', b'\n', b'0'][self.below(6)];
                input.splice(at..at, std::iter::repeat_n(what, many));
            }
            // The beginning of one and the end of another.
            10 => {
                let other = &all[self.below(all.len())];
                let at = self.below(other.len() + 1);
                let keep = self.below(input.len() + 1);
                input.truncate(keep);
                input.extend_from_slice(&other[at..]);
            }
            11 => {
                let keep = self.below(input.len() + 1);
                input.truncate(keep);
            }
            _ => {}
        }
    }

    /// Where a number is, from some place on; empty where there is none.
    fn number(&mut self, input: &[u8]) -> std::ops::Range<usize> {
        let from = self.below(input.len() + 1);
        let digits = |at: usize| input.get(at).is_some_and(u8::is_ascii_digit);
        let begin = (from..input.len()).find(|at| digits(*at)).unwrap_or(from);
        let end = (begin..).find(|at| !digits(*at)).unwrap_or(begin);
        begin..end
    }
}
