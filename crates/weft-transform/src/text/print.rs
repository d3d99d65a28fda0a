//! The canonical printed form of a network.

use std::fmt::{self, Write};

use super::{Element, Side, Text, is_bare};

pub(super) fn print(text: &Text, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if text.side == Side::View {
        f.write_str("view: ")?;
    }
    pipe(&text.pipe, f)
}

fn pipe(elements: &[Element], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for (at, element) in elements.iter().enumerate() {
        if at > 0 {
            f.write_str(" | ")?;
        }
        match element {
            Element::Tee { name, branch } => {
                f.write_str("tee ")?;
                if let Some(name) = name {
                    write!(f, "name={name} ")?;
                }
                f.write_char('(')?;
                pipe(branch, f)?;
                f.write_char(')')?;
            }
            Element::Stage(stage) => {
                if stage.inverted {
                    f.write_char('~')?;
                }
                f.write_str(&stage.name)?;
                for (name, text) in &stage.parameters {
                    write!(f, " {name}=")?;
                    value(text, f)?;
                }
            }
        }
    }
    Ok(())
}

fn value(text: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    if !text.is_empty() && text.chars().all(is_bare) {
        return f.write_str(text);
    }
    f.write_char('"')?;
    for c in text.chars() {
        match c {
            '"' | '\\' => write!(f, "\\{c}")?,
            '\n' => f.write_str("\\n")?,
            '\t' => f.write_str("\\t")?,
            c if c.is_ascii_control() => write!(f, "\\x{:02x}", c as u32)?,
            c => f.write_char(c)?,
        }
    }
    f.write_char('"')
}
