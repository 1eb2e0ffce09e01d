use std::fmt;

use outbox_core::{StoreError, StoreErrorKind};

/// Leaves room for the longest suffix of a companion or index in PostgreSQL's 63 bytes.
const MAX_TABLE: usize = 40;
const MAX_SCHEMA: usize = 63;

/// Where a table is. Shown quoted, so that names that are also SQL keywords work.
#[derive(Debug, Clone)]
pub struct TableName {
    pub(crate) schema: Option<String>,
    pub(crate) base: String,
    /// What the database puts around a name.
    quote: char,
}

impl TableName {
    /// In the default schema.
    pub(crate) fn plain(base: &str, quote: char) -> Self {
        Self { schema: None, base: base.to_owned(), quote }
    }

    pub(crate) fn parse(name: &str, quote: char) -> Result<Self, StoreError> {
        let (schema, base) = match name.split_once('.') {
            Some((schema, base)) => (Some(schema), base),
            None => (None, name),
        };
        if !is_identifier(base, MAX_TABLE) || !schema.is_none_or(|s| is_identifier(s, MAX_SCHEMA)) {
            return Err(invalid(name));
        }
        Ok(Self { schema: schema.map(str::to_owned), base: base.to_owned(), quote })
    }

    /// A companion of the table, in the same schema.
    pub(crate) fn qualified(&self, suffix: &str) -> String {
        match &self.schema {
            Some(schema) => format!("{quote}{schema}{quote}.{}", self.local(suffix), quote = self.quote),
            None => self.local(suffix),
        }
    }

    /// A name without its schema, as indexes and constraints are named.
    pub(crate) fn local(&self, suffix: &str) -> String {
        format!("{quote}{}{suffix}{quote}", self.base, quote = self.quote)
    }
}

impl fmt::Display for TableName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.qualified(""))
    }
}

/// The outbox and its companions.
#[derive(Debug, Clone)]
pub struct Names {
    pub(crate) table: TableName,
    /// The outbox itself.
    pub outbox: String,
    /// What consumer groups said.
    pub receipts: String,
}

impl Names {
    /// In the table `biz_outbox`.
    pub(crate) fn plain(quote: char) -> Self {
        Self::of(TableName::plain("biz_outbox", quote))
    }

    pub(crate) fn parse(name: &str, quote: char) -> Result<Self, StoreError> {
        TableName::parse(name, quote).map(Self::of)
    }

    fn of(table: TableName) -> Self {
        Self { outbox: table.qualified(""), receipts: table.qualified("_receipts"), table }
    }
}

fn is_identifier(text: &str, max: usize) -> bool {
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    starts_well && text.len() <= max && text.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn invalid(name: &str) -> StoreError {
    let message = format!(
        "{name:?} is not a table name: use letters, digits and `_`, at most {MAX_TABLE}, optionally after a schema and a dot"
    );
    StoreError::new(StoreErrorKind::Other, message)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn companions_live_beside_the_table() {
        let names = Names::parse("shop.biz_outbox", '"').unwrap();
        assert_eq!(names.outbox, "\"shop\".\"biz_outbox\"");
        assert_eq!(names.receipts, "\"shop\".\"biz_outbox_receipts\"");
        assert_eq!(names.table.local("_due"), "\"biz_outbox_due\"");
    }

    #[test]
    fn what_could_break_out_of_the_quotes_is_refused() {
        for bad in ["", ".", "a.", ".a", "a.b.c", "1a", "a b", "a\"b", "a`b", "a;b", "ä", &"a".repeat(41)] {
            assert!(Names::parse(bad, '"').is_err(), "{bad}");
        }
        assert!(Names::parse(&"a".repeat(40), '"').is_ok());
    }
}
