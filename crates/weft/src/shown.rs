//! Names and messages made safe for a terminal. A name on a volume can hold any bytes, also a
//! terminal's control sequences: no message carries it raw.

/// A name with its control characters and bytes that are not UTF-8 escaped, so that it can neither
/// deceive the user nor control the terminal; a backslash is doubled, so that the result is
/// unambiguous.
#[must_use]
pub fn shown(name: &[u8]) -> String {
    let mut s = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if must_escape(c) || c == '\\' {
                s.extend(c.escape_default());
            } else {
                s.push(c);
            }
        }
        for byte in chunk.invalid() {
            s.push_str(&format!("\\x{byte:02x}"));
        }
    }
    s
}

/// A whole message with everything that could control a terminal escaped; its lines stay lines.
#[must_use]
pub fn shown_lines(text: &str) -> String {
    let mut s = String::with_capacity(text.len());
    for c in text.chars() {
        if must_escape(c) && c != '\n' && c != '\t' {
            s.extend(c.escape_default());
        } else {
            s.push(c);
        }
    }
    s
}

/// Returns true for control characters, and those that reorder the text around them (Unicode's
/// Bidi_Control).
fn must_escape(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_steer_a_terminal() {
        assert_eq!(shown(b"plain \xc3\xa4"), "plain \u{e4}");
        assert_eq!(shown(b"\x1b[2J\n\\"), "\\u{1b}[2J\\n\\\\");
        assert_eq!(shown(b"a\xffb"), "a\\xffb");
        assert_eq!(shown("gpj.\u{202e}exe".as_bytes()), "gpj.\\u{202e}exe");
        assert_eq!(shown_lines("one\ntwo\x1b[31m\\"), "one\ntwo\\u{1b}[31m\\");
    }
}
