/// Whether a message may be what ends processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Suspicion {
    None,
    /// It came back often: it runs alone, so that the one which ends the process is the first of its queue
    /// when the next process comes.
    Alone,
    /// It came back too often.
    Guilty,
}

/// Judges the messages in the order of their queue. The broker counts for all that were here when a process
/// ended, so only the first of them is given up in the life of a process, and the others get their chance.
#[derive(Debug)]
pub(super) struct Judge {
    max_returns: u32,
    has_judged: bool,
}

impl Judge {
    pub(super) fn new(max_returns: u32) -> Self {
        Self { max_returns, has_judged: false }
    }

    pub(super) fn judge(&mut self, returns: u32) -> Suspicion {
        if returns < self.max_returns.div_ceil(2) {
            return Suspicion::None;
        }
        if returns < self.max_returns || self.has_judged {
            return Suspicion::Alone;
        }
        self.has_judged = true;
        Suspicion::Guilty
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_that_came_back_too_often_is_guilty_and_its_neighbours_are_not() {
        let mut judge = Judge::new(10);
        let verdicts = [0, 4, 5, 9, 10, 10, 30].map(|returns| judge.judge(returns));
        use Suspicion::{Alone, Guilty, None};
        assert_eq!(verdicts, [None, None, Alone, Alone, Guilty, Alone, Alone]);
    }

    /// Of `queue`, whose second message ends every process, with everything prefetched.
    #[test]
    fn message_that_ends_every_process_is_given_up_and_nothing_else() {
        let mut queue: Vec<(&str, u32)> = vec![("good", 0), ("bad", 0), ("good", 0), ("good", 0)];
        let mut processes = 0;
        let mut given_up = Vec::new();
        while !queue.is_empty() {
            processes += 1;
            assert!(processes < 20, "for ever");
            let mut judge = Judge::new(10);
            let verdicts: Vec<Suspicion> = queue.iter().map(|(_, returns)| judge.judge(*returns)).collect();
            let mut left = Vec::new();
            let mut crashed = false;
            for ((name, returns), verdict) in queue.into_iter().zip(verdicts) {
                match verdict {
                    _ if crashed => left.push((name, returns + 1)),
                    Suspicion::Guilty => given_up.push(name),
                    _ if name == "bad" => {
                        crashed = true;
                        left.push((name, returns + 1));
                    }
                    _ => {}
                }
            }
            queue = left;
        }
        assert_eq!(given_up, ["bad"]);
    }
}
