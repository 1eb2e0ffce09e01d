//! What relays and the broker do.

use super::rows::RowEvent;
use super::world::{End, Relay, World};
use super::{Taken, Whole};

/// What becomes of a publication.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Confirmed,
    /// Stored, but no confirmation comes.
    ConfirmLost,
    /// Stored, and the connection is cut.
    StoredAndCut,
    Nacked,
    Unavailable,
    Rejected,
}

impl Fate {
    pub(crate) const ALL: [Self; 6] = [
        Self::Confirmed,
        Self::ConfirmLost,
        Self::StoredAndCut,
        Self::Nacked,
        Self::Unavailable,
        Self::Rejected,
    ];

    fn is_stored(self) -> bool {
        matches!(self, Self::Confirmed | Self::ConfirmLost | Self::StoredAndCut)
    }

    fn end(self) -> End {
        match self {
            Self::Confirmed => End::Confirmed,
            Self::ConfirmLost | Self::Nacked => End::Retry,
            Self::StoredAndCut | Self::Unavailable => End::Released,
            Self::Rejected => End::Failed,
        }
    }
}

impl Whole {
    pub(super) fn claim(&mut self, world: &World, r: usize) -> Taken {
        if world.relays[r] != Relay::Idle || world.busy_relays() == self.model.relays {
            return Ok(None);
        }
        let claimed = self.happen(world, RowEvent::Claim)?;
        Ok(claimed.map(|world| with_relay(world, r, Relay::Claimed(0))))
    }

    /// Who learns that the claim is lost stops publishing.
    pub(super) fn renew(&mut self, world: &World, r: usize) -> Taken {
        let Relay::Claimed(age) = world.relays[r] else { return Ok(None) };
        let renewed = self.happen(world, RowEvent::Renew(age))?;
        Ok(renewed.or_else(|| Some(with_relay(*world, r, Relay::Idle))))
    }

    pub(super) fn publish(&mut self, world: &World, r: usize, fate: Fate) -> Taken {
        let Relay::Claimed(age) = world.relays[r] else { return Ok(None) };
        if fate.is_stored() && !world.has_room_for(age) {
            return Ok(None);
        }
        let mut next = with_relay(*world, r, Relay::Published(age, fate.end()));
        if fate.is_stored() {
            // With faults it does not matter how often.
            next.stored = (next.stored + 1).min(if self.model.faults { 1 } else { 2 });
            let groups = next.groups.iter_mut().take(self.model.groups);
            groups.for_each(|group| group.queue |= 1 << age);
        }
        Ok(Some(next))
    }

    pub(super) fn settle(&mut self, world: &World, r: usize) -> Taken {
        let Relay::Published(age, end) = world.relays[r] else { return Ok(None) };
        let settled = self.happen(world, RowEvent::Settle(age, end))?;
        Ok(Some(with_relay(settled.unwrap_or(*world), r, Relay::Idle)))
    }

    pub(super) fn crash_relay(&mut self, world: &World, r: usize) -> Taken {
        Ok((world.relays[r] != Relay::Idle).then(|| with_relay(*world, r, Relay::Idle)))
    }

    /// Without faults, leases are long enough for everything.
    pub(super) fn pass(&mut self, world: &World) -> Taken {
        if world.busy_relays() > 0 && !self.model.faults {
            return Ok(None);
        }
        self.happen(world, RowEvent::Pass)
    }
}

fn with_relay(mut world: World, r: usize, relay: Relay) -> World {
    world.relays[r] = relay;
    world
}
