use crate::claim::Claimed;

/// The payload that is expected of a message before any was seen.
const UNSEEN: usize = 1024 * 1024;

/// How many rows to claim at once, so that a batch holds about as many payload bytes as it may.
///
/// The size of a row is known only when it was claimed. So this begins with few rows and doubles them while
/// there is room: a relay that ran out of memory must not do so again at its next start.
#[derive(Debug)]
pub(crate) struct Ration {
    rows: usize,
    max_rows: usize,
    bytes: usize,
}

impl Ration {
    pub(crate) fn new(max_rows: usize, bytes: usize) -> Self {
        Self { rows: (bytes / UNSEEN).clamp(1, max_rows), max_rows, bytes }
    }

    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn learn(&mut self, claimed: &[Claimed]) {
        let bytes: usize = claimed.iter().map(|row| row.message.payload().len()).sum();
        self.adapt(claimed.len(), bytes);
    }

    fn adapt(&mut self, rows: usize, bytes: usize) {
        if rows > 0 {
            let fitting = self.bytes.saturating_mul(rows) / bytes.max(1);
            self.rows = fitting.min(self.rows.saturating_mul(2)).clamp(1, self.max_rows);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1024 * 1024;

    #[test]
    fn grows_to_the_whole_batch_while_payloads_are_small() {
        let mut ration = Ration::new(500, 16 * MIB);
        let claimed: Vec<usize> = (0..7)
            .map(|_| {
                let rows = ration.rows();
                ration.adapt(rows, rows * 300);
                rows
            })
            .collect();
        assert_eq!(claimed, [16, 32, 64, 128, 256, 500, 500]);
    }

    #[test]
    fn shrinks_to_what_fits_and_never_to_nothing() {
        let mut ration = Ration::new(500, 16 * MIB);
        ration.adapt(16, 16 * 4 * MIB);
        assert_eq!(ration.rows(), 4);
        ration.adapt(4, 4 * 64 * MIB);
        assert_eq!(ration.rows(), 1);
        ration.adapt(1, 0);
        assert_eq!(ration.rows(), 2);
    }

    #[test]
    fn nothing_claimed_teaches_nothing() {
        let mut ration = Ration::new(500, 16 * MIB);
        ration.adapt(0, 0);
        assert_eq!(ration.rows(), 16);
        assert_eq!(Ration::new(3, usize::MAX).rows(), 3);
        assert_eq!(Ration::new(500, 1).rows(), 1);
    }
}
