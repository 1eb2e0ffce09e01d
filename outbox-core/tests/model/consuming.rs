//! What consumers do, and what becomes of what they say.

use super::rows::RowEvent;
use super::world::{Dedup, Group, Handler, World};
use super::{Consumer, Flaw, Taken, Whole};

impl Whole {
    /// A delivery is looked at.
    pub(super) fn begin(&mut self, world: &World, g: usize) -> Taken {
        let group = &world.groups[g];
        if group.queue == 0 || group.handler != Handler::Idle || group.dedup != Dedup::Free {
            return Ok(None);
        }
        let dedup = match self.model.consumer {
            _ if self.model.has(Flaw::MarksBeforeHandling) => Dedup::Done,
            Consumer::Dedup => Dedup::Leased,
            Consumer::Inbox => Dedup::Free,
        };
        let receipt = group.receipt || self.model.has(Flaw::SendsReceiptFirst);
        let handler = Handler::Begun { holds_lease: true };
        with_group(world, g, Group { dedup, handler, receipt, ..*group })
    }

    /// The handler's transaction commits, and with an inbox the marker in it.
    pub(super) fn effect(&mut self, world: &World, g: usize) -> Taken {
        let group = world.groups[g];
        let Handler::Begun { holds_lease } = group.handler else { return Ok(None) };
        let dedup = if self.model.consumer == Consumer::Inbox { Dedup::Done } else { group.dedup };
        with_group(world, g, Group { dedup, handler: Handler::Ran { holds_lease }, effect: true, ..group })
    }

    pub(super) fn finish(&mut self, world: &World, g: usize) -> Taken {
        let group = world.groups[g];
        match group.handler {
            Handler::Ran { holds_lease: true } => {
                let (dedup, handler) = (Dedup::Done, Handler::Idle);
                with_group(world, g, Group { dedup, handler, receipt: true, ..group })
            }
            Handler::Ran { holds_lease: false } => {
                with_group(world, g, Group { handler: Handler::Idle, ..group })
            }
            Handler::Idle | Handler::Begun { .. } => Ok(None),
        }
    }

    pub(super) fn handler_fails(&mut self, world: &World, g: usize) -> Taken {
        let group = world.groups[g];
        let Handler::Begun { holds_lease } = group.handler else { return Ok(None) };
        let gives_back = holds_lease && group.dedup == Dedup::Leased;
        let dedup = if gives_back { Dedup::Free } else { group.dedup };
        with_group(world, g, Group { dedup, handler: Handler::Idle, ..group })
    }

    pub(super) fn crash_consumer(&mut self, world: &World, g: usize) -> Taken {
        let group = world.groups[g];
        match group.handler {
            Handler::Idle => Ok(None),
            _ => with_group(world, g, Group { handler: Handler::Idle, ..group }),
        }
    }

    /// The lease of a handler that still runs, or that of one that has crashed.
    pub(super) fn lease_ends(&mut self, world: &World, g: usize, of_living: bool) -> Taken {
        let group = world.groups[g];
        let (lives, handler) = match group.handler {
            Handler::Begun { holds_lease: true } => (true, Handler::Begun { holds_lease: false }),
            Handler::Ran { holds_lease: true } => (true, Handler::Ran { holds_lease: false }),
            other => (false, other),
        };
        if group.dedup != Dedup::Leased || lives != of_living {
            return Ok(None);
        }
        with_group(world, g, Group { dedup: Dedup::Free, handler, ..group })
    }

    /// A delivery of something that is done: its receipt goes out again, for the first may have been lost.
    pub(super) fn acknowledge(&mut self, world: &World, g: usize) -> Taken {
        let group = world.groups[g];
        let is_done = match group.dedup {
            Dedup::Free => false,
            Dedup::Leased => self.model.has(Flaw::AcknowledgesWhatIsInProgress),
            Dedup::Done => true,
        };
        if !is_done || group.queue == 0 {
            return Ok(None);
        }
        with_group(world, g, Group { queue: without_lowest(group.queue), receipt: true, ..group })
    }

    pub(super) fn reject(&mut self, world: &World, g: usize) -> Taken {
        let group = world.groups[g];
        let may = self.model.rejects && !group.effect && group.handler == Handler::Idle;
        if !may || group.queue == 0 || group.rejection.is_some() {
            return Ok(None);
        }
        let rejection = Some(group.queue.trailing_zeros() as u8);
        with_group(world, g, Group { queue: without_lowest(group.queue), rejection, ..group })
    }

    /// It stays under way, because it may be recorded twice.
    pub(super) fn record_receipt(&mut self, world: &World, g: usize) -> Taken {
        match world.groups[g].receipt {
            true => self.happen(world, RowEvent::Receipt(g)),
            false => Ok(None),
        }
    }

    pub(super) fn lose_receipt(&mut self, world: &World, g: usize) -> Taken {
        match world.groups[g].receipt {
            true => with_group(world, g, Group { receipt: false, ..world.groups[g] }),
            false => Ok(None),
        }
    }

    pub(super) fn record_rejection(&mut self, world: &World, g: usize) -> Taken {
        match world.groups[g].rejection {
            Some(age) => self.happen(world, RowEvent::Reject(g, age)),
            None => Ok(None),
        }
    }

    pub(super) fn lose_rejection(&mut self, world: &World, g: usize) -> Taken {
        match world.groups[g].rejection {
            Some(_) => with_group(world, g, Group { rejection: None, ..world.groups[g] }),
            None => Ok(None),
        }
    }
}

fn with_group(world: &World, g: usize, group: Group) -> Taken {
    let mut next = *world;
    next.groups[g] = group;
    Ok(Some(next))
}

/// The delivery of the newest claim; as queues hold at most two, the order is no matter.
fn without_lowest(queue: u16) -> u16 {
    queue & (queue - 1)
}
