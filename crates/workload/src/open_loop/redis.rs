//! The part of the redis protocol that is needed by a client that always asks for the same key.

/// The value of the key: three bytes, as redis-benchmark has by default.
pub(super) const VALUE: &str = "xxx";
/// The answer to every GET.
const ANSWER: &[u8] = b"$3\r\nxxx\r\n";

/// A command: an array of strings.
pub(super) fn command(words: &[&str]) -> Vec<u8> {
    let mut text = format!("*{}\r\n", words.len());
    for word in words {
        text.push_str(&format!("${}\r\n{word}\r\n", word.len()));
    }
    text.into_bytes()
}

/// Compares what a connection receives with answers to GET, wherever the stream is cut.
#[derive(Debug, Default)]
pub(super) struct Answers {
    at: usize,
}

impl Answers {
    /// How many answers `bytes` completes.
    ///
    /// # Errors
    /// The line that is no such answer.
    pub(super) fn accept(&mut self, bytes: &[u8]) -> Result<usize, String> {
        let mut complete = 0;
        let mut rest = bytes;
        while !rest.is_empty() {
            let wanted = &ANSWER[self.at..];
            let n = wanted.len().min(rest.len());
            let (now, later) = rest.split_at(n);
            if now != &wanted[..n] {
                return Err(line(rest));
            }
            rest = later;
            self.at += n;
            if self.at == ANSWER.len() {
                self.at = 0;
                complete += 1;
            }
        }
        Ok(complete)
    }
}

/// The first line of `bytes`, for a message.
pub(super) fn line(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|b| *b == b'\r' || *b == b'\n');
    let line = &bytes[..end.unwrap_or(bytes.len()).min(200)];
    String::from_utf8_lossy(line).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_an_array_of_strings() {
        let get = command(&["GET", "key"]);
        assert_eq!(get, b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n");
        let value = format!("${}\r\n{VALUE}\r\n", VALUE.len());
        assert_eq!(value.as_bytes(), ANSWER);
    }

    #[test]
    fn answers_are_counted_wherever_the_stream_is_cut() {
        let stream = ANSWER.repeat(5);
        for cut in 1..stream.len() {
            let mut answers = Answers::default();
            let counted: usize = stream
                .chunks(cut)
                .map(|part| answers.accept(part).unwrap())
                .sum();
            assert_eq!(counted, 5, "in pieces of {cut}");
        }
    }

    #[test]
    fn another_answer_is_an_error_with_its_text() {
        let mut answers = Answers::default();
        assert_eq!(answers.accept(ANSWER), Ok(1));
        let refused = answers.accept(b"-NOAUTH Authentication required.\r\n");
        assert_eq!(refused.unwrap_err(), "-NOAUTH Authentication required.");
        assert_eq!(Answers::default().accept(b"$-1\r\n").unwrap_err(), "$-1");
    }
}
