use std::collections::BTreeMap;

use lapin::types::{AMQPValue, FieldTable, ShortString, ShortStringError};

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Arguments(BTreeMap<String, Argument>);

impl Arguments {
    pub(super) fn insert(&mut self, name: impl Into<String>, value: impl Into<Argument>) {
        self.0.insert(name.into(), value.into());
    }

    pub(super) fn table(&self) -> Result<FieldTable, ShortStringError> {
        let mut table = FieldTable::default();
        for (name, value) in &self.0 {
            table.insert(ShortString::try_new(name)?, value.into());
        }
        Ok(table)
    }
}

/// The value of an argument.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Argument {
    /// Text.
    Text(String),
    /// A whole number.
    Number(i64),
    /// Yes or no.
    Flag(bool),
}

impl From<&str> for Argument {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Argument {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Argument {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl From<bool> for Argument {
    fn from(flag: bool) -> Self {
        Self::Flag(flag)
    }
}

impl From<&Argument> for AMQPValue {
    fn from(argument: &Argument) -> Self {
        match argument {
            Argument::Text(text) => AMQPValue::LongString(text.as_str().into()),
            Argument::Number(number) => AMQPValue::LongLongInt(*number),
            Argument::Flag(flag) => AMQPValue::Boolean(*flag),
        }
    }
}
