//! The parser of network texts: one pass over the characters, bounded in length and depth.

use super::{DEPTH_MAX, ELEMENTS_MAX, Element, Side, StageText, TEXT_MAX_BYTES, Text, is_bare};
use crate::{Error, Result};

struct Parser<'a> {
    text: &'a str,
    at: usize,
    elements: usize,
}

pub(super) fn parse(text: &str) -> Result<Text> {
    let mut parser = Parser { text, at: 0, elements: 0 };
    if text.len() > TEXT_MAX_BYTES {
        return Err(parser.error(format!("longer than {TEXT_MAX_BYTES} bytes")));
    }
    parser.space();
    let mut side = Side::Store;
    for (word, meant) in [("view", Side::View), ("store", Side::Store)] {
        let rest = &parser.text[parser.at..];
        if let Some(rest) = rest.strip_prefix(word)
            && rest.trim_start().starts_with(':')
        {
            side = meant;
            parser.at += word.len();
            parser.space();
            parser.at += 1;
            break;
        }
    }
    let pipe = parser.pipe(0)?;
    match parser.peek() {
        None => Ok(Text { side, pipe }),
        Some(c) => Err(parser.error(format!("expected | or the end, found {c:?}"))),
    }
}

impl Parser<'_> {
    fn error(&self, message: impl Into<String>) -> Error {
        Error::Text { at: self.at, message: message.into() }
    }

    fn peek(&self) -> Option<char> {
        self.text[self.at..].chars().next()
    }

    fn next(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn take(&mut self, c: char) -> bool {
        let found = self.peek() == Some(c);
        if found {
            self.at += c.len_utf8();
        }
        found
    }

    fn space(&mut self) {
        while self.peek().is_some_and(|c| c.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn pipe(&mut self, depth: usize) -> Result<Vec<Element>> {
        let mut pipe = Vec::new();
        loop {
            pipe.push(self.element(depth)?);
            self.space();
            if !self.take('|') {
                return Ok(pipe);
            }
        }
    }

    fn element(&mut self, depth: usize) -> Result<Element> {
        self.elements += 1;
        if self.elements > ELEMENTS_MAX {
            return Err(self.error(format!("more than {ELEMENTS_MAX} stages")));
        }
        self.space();
        let inverted = self.take('~');
        let start = self.at;
        let name = self.name("the name of a stage")?;
        self.space();
        let mut parameters: Vec<(String, String)> = Vec::new();
        while self.peek().is_some_and(|c| c.is_ascii_alphabetic()) {
            let start = self.at;
            let parameter = self.name("the name of a parameter")?;
            self.space();
            if !self.take('=') {
                return Err(self.error(format!("expected = behind \"{parameter}\"")));
            }
            self.space();
            let value = self.value()?;
            match parameters.binary_search_by(|(name, _)| name.cmp(&parameter)) {
                Ok(_) => {
                    self.at = start;
                    return Err(self.error(format!("parameter \"{parameter}\" is given twice")));
                }
                Err(place) => parameters.insert(place, (parameter, value)),
            }
            self.space();
        }
        if name == "tee" && self.peek() == Some('(') {
            if inverted {
                self.at = start;
                return Err(self.error("a tee has no inverse"));
            }
            return self.tee(depth, start, &parameters);
        }
        Ok(Element::Stage(StageText { name, inverted, parameters }))
    }

    /// Parses a tee from its branch on.
    fn tee(
        &mut self,
        depth: usize,
        start: usize,
        parameters: &[(String, String)],
    ) -> Result<Element> {
        let is_name = |text: &str| {
            text.starts_with(|c: char| c.is_ascii_alphabetic())
                && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
        };
        let name = match parameters {
            [] => None,
            [(parameter, name)] if parameter == "name" && is_name(name) => Some(name.clone()),
            _ => {
                self.at = start;
                return Err(self.error("a tee has name=NAME, of letters, digits, - and _"));
            }
        };
        if depth == DEPTH_MAX {
            return Err(self.error(format!("branches more than {DEPTH_MAX} deep")));
        }
        self.take('(');
        let branch = self.pipe(depth + 1)?;
        if !self.take(')') {
            return Err(self.error("expected | or ) in a branch"));
        }
        Ok(Element::Tee { name, branch })
    }

    fn name(&mut self, what: &str) -> Result<String> {
        let rest = &self.text[self.at..];
        let len = rest
            .find(|c: char| !(c.is_ascii_alphanumeric() || c == '-' || c == '_'))
            .unwrap_or(rest.len());
        let name = &rest[..len];
        if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
            let found = rest.chars().next().map_or("the end".to_owned(), |c| format!("{c:?}"));
            return Err(self.error(format!("expected {what}, found {found}")));
        }
        self.at += len;
        Ok(name.to_owned())
    }

    fn value(&mut self) -> Result<String> {
        if self.take('"') {
            return self.quoted();
        }
        let rest = &self.text[self.at..];
        let len = rest.find(|c| !is_bare(c)).unwrap_or(rest.len());
        if len == 0 {
            return Err(self.error("expected a value"));
        }
        self.at += len;
        Ok(rest[..len].to_owned())
    }

    fn quoted(&mut self) -> Result<String> {
        let mut value = String::new();
        loop {
            let Some(c) = self.next() else {
                return Err(self.error("the quoted value does not end"));
            };
            match c {
                '"' => return Ok(value),
                '\\' => match self.next() {
                    Some(c @ ('"' | '\\')) => value.push(c),
                    Some('n') => value.push('\n'),
                    Some('t') => value.push('\t'),
                    Some('x') => value.push(self.hex()?),
                    _ => return Err(self.error("expected \\\\, \\\", \\n, \\t or \\xHH")),
                },
                c => value.push(c),
            }
        }
    }

    fn hex(&mut self) -> Result<char> {
        let digits = self.text.get(self.at..self.at + 2).filter(|d| d.is_ascii());
        let byte = digits.and_then(|d| u8::from_str_radix(d, 16).ok()).filter(u8::is_ascii);
        let byte = byte.ok_or_else(|| self.error("expected two hex digits up to 7f"))?;
        self.at += 2;
        Ok(char::from(byte))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(text: &str) -> Text {
        text.parse().unwrap_or_else(|e| panic!("{text:?}: {e}"))
    }

    #[test]
    fn canonical_form() {
        for (written, canonical) in [
            ("identity", "identity"),
            ("zstd level=3|aead key=work", "zstd level=3 | aead key=work"),
            (" store :  ~zstd ", "~zstd"),
            ("view:upper", "view: upper"),
            ("viewer", "viewer"),
            ("aead key = work cipher=xchacha", "aead cipher=xchacha key=work"),
            ("xor key=\"a b\\\\\\n\\x01\"", "xor key=\"a b\\\\\\n\\x01\""),
            ("xor key=\"plain\"", "xor key=plain"),
            ("xor key=\"\"", "xor key=\"\""),
            ("tee(upper|log to=x) | zstd", "tee (upper | log to=x) | zstd"),
            ("view:tee  name=a(upper)|merge with=a", "view: tee name=a (upper) | merge with=a"),
        ] {
            assert_eq!(text(written).to_string(), canonical, "{written:?}");
        }
        assert_eq!(text("view: a").side, Side::View);
    }

    #[test]
    fn errors_name_the_place() {
        for (written, at, message) in [
            ("", 0, "found the end"),
            ("zstd |", 6, "the name of a stage"),
            ("zstd | | x", 7, "the name of a stage"),
            ("zstd level", 10, "expected ="),
            ("zstd level=", 11, "expected a value"),
            ("zstd a=1 a=2", 9, "given twice"),
            ("xor key=\"x", 10, "does not end"),
            ("xor key=\"\\q\"", 11, "expected \\\\"),
            ("xor key=\"\\xe9\"", 11, "hex digits"),
            ("zstd ) x", 5, "expected |"),
            ("tee (zstd", 9, "in a branch"),
            ("~tee (zstd)", 1, "no inverse"),
            ("tee name=\"a,b\" (zstd)", 0, "letters, digits"),
            ("tee to=a (zstd)", 0, "has name=NAME"),
            ("1zstd", 0, "the name of a stage"),
        ] {
            match written.parse::<Text>() {
                Err(Error::Text { at: found, message: said }) => {
                    assert_eq!(found, at, "{written:?}: {said}");
                    assert!(said.contains(message), "{written:?}: {said}");
                }
                other => panic!("{written:?}: {other:?}"),
            }
        }
    }

    #[test]
    fn limits_hold() {
        let long = format!("x k={}", "a".repeat(TEXT_MAX_BYTES));
        assert!(matches!(long.parse::<Text>(), Err(Error::Text { .. })));
        let many = vec!["x"; ELEMENTS_MAX + 1].join("|");
        assert!(matches!(many.parse::<Text>(), Err(Error::Text { .. })));
        let deep = format!("{}x{}", "tee(".repeat(1000), ")".repeat(1000));
        assert!(matches!(deep.parse::<Text>(), Err(Error::Text { .. })));
    }

    fn stage() -> impl Strategy<Value = StageText> {
        let parameters = proptest::collection::btree_map("[a-z][a-z0-9-]{0,5}", ".{0,6}", 0..3);
        ("[a-z][a-z0-9_-]{0,8}", any::<bool>(), parameters).prop_map(|(name, inverted, map)| {
            StageText { name, inverted, parameters: map.into_iter().collect() }
        })
    }

    fn element() -> impl Strategy<Value = Element> {
        let leaf = stage().prop_map(Element::Stage);
        leaf.prop_recursive(3, 12, 3, |inner| {
            let name = proptest::option::of("[a-z][a-z0-9_-]{0,3}");
            let branch = proptest::collection::vec(inner, 1..3);
            (name, branch).prop_map(|(name, branch)| Element::Tee { name, branch })
        })
    }

    proptest! {
        #[test]
        fn what_is_printed_parses_to_the_same(
            view in any::<bool>(),
            pipe in proptest::collection::vec(element(), 1..5),
        ) {
            let side = if view { Side::View } else { Side::Store };
            let made = Text { side, pipe };
            let printed = made.to_string();
            let parsed: Text = printed.parse().map_err(|e| TestCaseError::fail(format!("{printed}: {e}")))?;
            prop_assert_eq!(&parsed, &made);
            prop_assert_eq!(parsed.to_string(), printed);
        }

        #[test]
        fn any_text_is_parsed_or_refused(text in ".{0,60}") {
            if let Ok(parsed) = text.parse::<Text>() {
                let printed = parsed.to_string();
                prop_assert_eq!(printed.parse::<Text>().expect("canonical"), parsed);
            }
        }
    }
}
