//! Text in a page: escaped where it is written.

use std::fmt::{self, Display, Write};

/// Anything, as text that cannot become markup, between tags or in a quoted attribute.
pub(super) struct Plain<T>(pub(super) T);

impl<T: Display> Display for Plain<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(Escaping(f), "{}", self.0)
    }
}

struct Escaping<'a, 'b>(&'a mut fmt::Formatter<'b>);

impl Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for letter in text.chars() {
            match letter {
                '&' => self.0.write_str("&amp;")?,
                '<' => self.0.write_str("&lt;")?,
                '>' => self.0.write_str("&gt;")?,
                '"' => self.0.write_str("&quot;")?,
                '\'' => self.0.write_str("&#39;")?,
                letter => self.0.write_char(letter)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_becomes_markup() {
        let evil = r#"<script>alert('x')</script><img src="a" onerror=b>&amp;"#;
        let shown = Plain(evil).to_string();
        assert!(!shown.contains(['<', '>', '"', '\'']), "{shown}");
        assert!(shown.starts_with("&lt;script&gt;alert(&#39;x&#39;)"), "{shown}");
        assert!(shown.ends_with("&amp;amp;"), "{shown}");
        assert_eq!(Plain("plain text, ümlaut").to_string(), "plain text, ümlaut");
    }
}
