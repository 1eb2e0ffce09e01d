use std::collections::{BTreeMap, BTreeSet};

/// What the test did, and therefore what must have come of it.
#[derive(Debug, Clone, Default)]
pub struct Ledger {
    committed: BTreeSet<String>,
    failed: BTreeSet<String>,
    repeats: BTreeMap<String, usize>,
}

impl Ledger {
    /// These exist: they must be delivered. Whatever is not committed must not be.
    pub fn committed<I: Into<String>>(&mut self, ids: impl IntoIterator<Item = I>) {
        self.committed.extend(ids.into_iter().map(Into::into));
    }

    /// These can never be delivered: they must be failed, with a reason.
    pub fn failed<I: Into<String>>(&mut self, ids: impl IntoIterator<Item = I>) {
        self.failed.extend(ids.into_iter().map(Into::into));
    }

    /// These were in flight when something was broken: each may be delivered once more than before.
    pub fn may_repeat<I: Into<String>>(&mut self, ids: impl IntoIterator<Item = I>) {
        for id in ids {
            *self.repeats.entry(id.into()).or_default() += 1;
        }
    }

    pub(crate) fn all(&self) -> &BTreeSet<String> {
        &self.committed
    }

    pub(crate) fn is_failed(&self, id: &str) -> bool {
        self.failed.contains(id)
    }

    pub(crate) fn allowed(&self, id: &str) -> usize {
        match self.committed.contains(id) && !self.failed.contains(id) {
            true => 1 + self.repeats.get(id).copied().unwrap_or(0),
            false => 0,
        }
    }
}
