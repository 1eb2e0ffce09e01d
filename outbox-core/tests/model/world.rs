//! Everything around the row that can be in some state: relays, broker, consumer groups.

use super::{GROUPS, RELAYS};

/// Claims are told apart by their age: 0 is the row's latest claim number, older ones count from there. As
/// nobody does more with a claim number than to compare it, gaps between ages are closed, and the number of
/// worlds stays finite however often the row is claimed.
pub(crate) type Age = u8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct World {
    /// The row's number in [`Rows`](super::rows::Rows); `None`: it is in the history.
    pub(crate) row: Option<u16>,
    pub(crate) relays: [Relay; RELAYS],
    /// How often the broker has stored it, as far as that matters.
    pub(crate) stored: u8,
    pub(crate) groups: [Group; GROUPS.len()],
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Relay {
    Idle,
    /// It holds the row, or believes so.
    Claimed(Age),
    /// It knows how publishing ended, and has not said so yet.
    Published(Age, End),
}

/// What a relay makes of the broker's answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum End {
    Confirmed,
    Retry,
    Failed,
    Released,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Group {
    /// What waits in its queue: a bit for the age of each claim under which it was published.
    pub(crate) queue: u16,
    /// Whether the business has seen the effect.
    pub(crate) effect: bool,
    pub(crate) dedup: Dedup,
    pub(crate) handler: Handler,
    /// A receipt is under way.
    pub(crate) receipt: bool,
    /// A rejection is under way, of the message published under that claim.
    pub(crate) rejection: Option<Age>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) enum Dedup {
    #[default]
    Free,
    Leased,
    Done,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) enum Handler {
    #[default]
    Idle,
    /// It runs, and holds the lease or has lost it.
    Begun { holds_lease: bool },
    /// It has had its effect.
    Ran { holds_lease: bool },
}

impl World {
    pub(crate) fn new(row: u16) -> Self {
        Self {
            row: Some(row),
            relays: [Relay::Idle; RELAYS],
            stored: 0,
            groups: [Group::default(); GROUPS.len()],
        }
    }

    pub(crate) fn busy_relays(&self) -> usize {
        self.relays.iter().filter(|relay| **relay != Relay::Idle).count()
    }

    /// Whether a publication finds room in every queue; two different ones are enough to see any mix-up.
    pub(crate) fn has_room_for(&self, age: Age) -> bool {
        self.groups.iter().all(|group| group.queue.count_ones() < 2 || group.queue & 1 << age != 0)
    }

    /// The row has a new claim number.
    pub(crate) fn grow_older(&mut self) {
        self.change_ages(|age| age + 1);
    }

    /// The one of many equal worlds that stands for all of them.
    pub(crate) fn canonical(mut self) -> Self {
        let used = self.ages() | 1;
        let has_gaps = !(used + 1).is_power_of_two();
        if has_gaps {
            self.change_ages(|age| (1..=age).filter(|older| used & 1 << older != 0).count() as Age);
        }
        self.relays.sort_unstable();
        self
    }

    fn ages(&self) -> u16 {
        let of_relays = self.relays.iter().filter_map(|relay| relay.age()).map(|age| 1 << age);
        let of_groups = self.groups.iter().map(|g| g.queue | g.rejection.map_or(0, |age| 1 << age));
        of_relays.chain(of_groups).fold(0, |all, ages| all | ages)
    }

    fn change_ages(&mut self, change: impl Fn(Age) -> Age) {
        for relay in &mut self.relays {
            if let Relay::Claimed(age) | Relay::Published(age, _) = relay {
                *age = change(*age);
            }
        }
        for group in &mut self.groups {
            let waiting = (0..u16::BITS as Age).filter(|age| group.queue & 1 << age != 0);
            group.queue = waiting.fold(0, |queue, age| queue | 1 << change(age));
            group.rejection = group.rejection.map(&change);
        }
    }
}

impl Relay {
    fn age(self) -> Option<Age> {
        match self {
            Self::Idle => None,
            Self::Claimed(age) | Self::Published(age, _) => Some(age),
        }
    }
}
