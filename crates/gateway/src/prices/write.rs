//! Writes `prices.toml`: the same models give the same bytes, and a reader never sees half a file.

use super::{Above, ModelPrice, PricesError, Table};
use holdfast_domain::CreditsPerUsd;
use std::fmt::Write as _;
use std::fs::{self, File, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use toml::Value;

const HEAD: &str = "\
# Prices of models, in US dollars per million tokens; per_request in dollars. Read again within a second of a change.
# `holdfast prices import` writes this file anew, in the order of the names: it keeps every model, but no comments.
";

/// The text of a file with these models, which are in the order of their names.
pub(crate) fn text<'a>(models: impl Iterator<Item = &'a ModelPrice>, credits_per_usd: CreditsPerUsd) -> String {
    let mut text = format!("{HEAD}\ncredits_per_usd = {}\n", credits_per_usd.get());
    for model in models {
        let _never_fails = write!(text, "\n{}", entry(model));
    }
    text
}

fn entry(model: &ModelPrice) -> String {
    let quoted = |text: &str| Value::from(text).to_string();
    let rates = &model.rates;
    let fields = [
        ("provider", model.provider.as_deref().map(quoted)),
        ("input", Some(quoted(&rates.input.to_string()))),
        ("output", Some(quoted(&rates.output.to_string()))),
        ("cached_input", rates.cached_input.map(|price| quoted(&price.to_string()))),
        ("cache_write", rates.cache_write.map(|price| quoted(&price.to_string()))),
        ("reasoning", rates.reasoning.map(|price| quoted(&price.to_string()))),
        ("per_request", rates.per_request.map(|price| quoted(&price.to_string()))),
        ("context", model.context.map(|tokens| tokens.to_string())),
        ("max_output", model.max_output.map(|tokens| tokens.to_string())),
        ("aliases", (!model.aliases.is_empty()).then(|| Value::from(model.aliases.clone()).to_string())),
    ];
    // A name in basic quotes is a key in any case; a literal string could hold a quotation mark.
    let mut entry = format!("[models.{}]\n", key(&model.name));
    for (field, value) in fields {
        if let Some(value) = value {
            let _never_fails = writeln!(entry, "{field} = {value}");
        }
    }
    for above in &model.above {
        entry.push_str(&longer(model, above));
    }
    entry
}

fn longer(model: &ModelPrice, Above { input_tokens, rates }: &Above) -> String {
    let mut entry = format!("[[models.{}.above]]\ninput_tokens = {input_tokens}\n", key(&model.name));
    let prices = [
        ("input", Some(rates.input)),
        ("output", Some(rates.output)),
        ("cached_input", rates.cached_input),
        ("cache_write", rates.cache_write),
        ("reasoning", rates.reasoning),
    ];
    for (field, price) in prices {
        if let Some(price) = price {
            let _never_fails = writeln!(entry, "{field} = \"{price}\"");
        }
    }
    entry
}

/// A name as a quoted key. Names have no control characters, so two characters need an escape.
fn key(name: &str) -> String {
    format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""))
}

/// Puts `text` in the place of the file at `path`, all or nothing. What would not read back is not written.
pub(crate) fn replace(path: &Path, text: &str) -> Result<(), PricesError> {
    Table::parse(path, text)?;
    let unwritable = |error: io::Error| PricesError::Unreadable { path: path.to_owned(), error };
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(unwritable)?;
    let mut file = tempfile::NamedTempFile::new_in(parent).map_err(unwritable)?;
    // Prices are no secret; a file that somebody made otherwise stays so.
    let permissions = fs::metadata(path).map_or_else(|_| Permissions::from_mode(0o644), |known| known.permissions());
    file.as_file().set_permissions(permissions).map_err(unwritable)?;
    file.write_all(text.as_bytes()).and_then(|()| file.as_file().sync_all()).map_err(unwritable)?;
    file.persist(path).map_err(|error| unwritable(error.error))?;
    File::open(parent).and_then(|parent| parent.sync_all()).map_err(unwritable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_is_written_reads_back_and_is_the_same_again() {
        let source = "credits_per_usd = 50\n[models.'we\"ird\\name']\ninput = \"0.000001\"\noutput = \"1000000\"\ncontext = 5\n\
            aliases = ['a\"b', \"ü\"]\n[models.b]\nprovider = \"p\"\ninput = \"1\"\noutput = \"2.5\"\ncached_input = \"0.1\"\n\
            cache_write = \"3\"\nreasoning = \"4\"\nper_request = \"0.5\"\nmax_output = 9\n\
            [[models.b.above]]\ninput_tokens = 7\ninput = \"2\"\noutput = \"5\"\nreasoning = \"8\"\n[[models.b.above]]\n\
            input_tokens = 8\ninput = \"3\"\noutput = \"6\"\ncached_input = \"0.2\"\ncache_write = \"4\"\n";
        let table = Table::parse(Path::new("a.toml"), source).unwrap();
        let written = text(table.models(), table.credits_per_usd());
        let again = Table::parse(Path::new("b.toml"), &written).unwrap();
        assert!(again.models().eq(table.models()), "{written}");
        assert_eq!(text(again.models(), again.credits_per_usd()), written);
    }

    #[test]
    fn a_file_that_would_not_read_back_is_not_written() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/prices.toml");
        assert_eq!(replace(&path, "nonsense").unwrap_err().code(), "INVALID_PRICES");
        assert!(!path.exists());
        replace(&path, "credits_per_usd = 7\n").unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), "credits_per_usd = 7\n");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
    }

    proptest! {
        #[test]
        fn any_name_reads_back(name in "[^\\s\\p{C}]{1,40}") {
            let table = Table::built_in();
            let model = ModelPrice { name: name.clone(), provider: None, ..(*table.find("echo").unwrap()).clone() };
            let written = text([&model].into_iter(), table.credits_per_usd());
            let again = Table::parse(Path::new("a.toml"), &written).unwrap();
            prop_assert_eq!(&again.find(&name).unwrap().name, &name);
        }
    }
}
