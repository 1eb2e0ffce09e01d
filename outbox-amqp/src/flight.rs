use std::collections::VecDeque;

use futures_util::future::{BoxFuture, FutureExt, poll_immediate};
use lapin::options::BasicPublishOptions;
use lapin::{Channel, Confirmation, PublisherConfirm};

use crate::parcel::Envelope;

/// Bytes handed to lapin and not yet on the wire, at most: it copies every body.
const UNWRITTEN: usize = 8 * 1024 * 1024;
const MANDATORY: BasicPublishOptions = BasicPublishOptions { mandatory: true, immediate: false };

type Written = Result<PublisherConfirm, lapin::Error>;
pub(crate) type Landed = Result<Confirmation, lapin::Error>;

/// One message to send; `index` is its place in the batch.
pub(crate) struct Cargo<'a> {
    pub(crate) index: usize,
    pub(crate) envelope: Envelope,
    pub(crate) body: &'a [u8],
}

/// Messages on their way on a channel that nobody else uses. Every method may be cancelled: what has been
/// learned stays.
#[derive(Default)]
pub(crate) struct Flight<'a> {
    unwritten: VecDeque<(usize, usize, BoxFuture<'a, Written>)>,
    unwritten_bytes: usize,
    unconfirmed: VecDeque<(usize, PublisherConfirm)>,
    landed: Vec<(usize, Landed)>,
    /// Everything that lapin was given, by place in the batch.
    handed_over: Vec<usize>,
}

impl<'a> Flight<'a> {
    /// Sends everything, in order, and waits for every confirmation.
    pub(crate) async fn run(&mut self, channel: &'a Channel, cargo: impl IntoIterator<Item = Cargo<'a>>) {
        for item in cargo {
            self.send(channel, item).await;
            while self.unwritten_bytes > UNWRITTEN {
                self.write_first().await;
            }
        }
        while !self.unwritten.is_empty() {
            self.write_first().await;
        }
        while let Some((index, confirm)) = self.unconfirmed.front_mut() {
            let landed = (*index, confirm.await);
            self.unconfirmed.pop_front();
            self.landed.push(landed);
        }
    }

    /// Hands a message to lapin, which does so at the first poll.
    async fn send(&mut self, channel: &'a Channel, Cargo { index, envelope, body }: Cargo<'a>) {
        self.handed_over.push(index);
        let Envelope { exchange, routing_key, properties } = envelope;
        let mut write = channel.basic_publish(exchange, routing_key, MANDATORY, body, properties).boxed();
        match poll_immediate(&mut write).await {
            Some(written) => self.written(index, written),
            None => {
                self.unwritten_bytes += body.len();
                self.unwritten.push_back((index, body.len(), write));
            }
        }
    }

    async fn write_first(&mut self) {
        if let Some((index, bytes, write)) = self.unwritten.front_mut() {
            let (index, bytes, written) = (*index, *bytes, write.await);
            self.unwritten.pop_front();
            self.unwritten_bytes -= bytes;
            self.written(index, written);
        }
    }

    fn written(&mut self, index: usize, written: Written) {
        match written {
            Ok(confirm) => self.unconfirmed.push_back((index, confirm)),
            Err(error) => self.landed.push((index, Err(error))),
        }
    }

    pub(crate) fn handed_over(&self) -> &[usize] {
        &self.handed_over
    }

    /// What is known now. Collects until a whole pass finds nothing new: a message's return may hang on a
    /// confirmation that came earlier but stands later in the queue. Where something is not written yet, its
    /// confirmation, which nobody will ask, may have got a return that belongs to another: then no bare
    /// acknowledgement proves anything, and none is collected.
    pub(crate) async fn land(mut self) -> Vec<(usize, Landed)> {
        for (index, bytes, mut write) in std::mem::take(&mut self.unwritten) {
            match poll_immediate(&mut write).await {
                Some(written) => self.written(index, written),
                None => self.unwritten.push_back((index, bytes, write)),
            }
        }
        if self.unwritten.is_empty() {
            while self.collect().await {}
        }
        self.landed
    }

    async fn collect(&mut self) -> bool {
        let mut found = false;
        for (index, mut confirm) in std::mem::take(&mut self.unconfirmed) {
            match poll_immediate(&mut confirm).await {
                Some(landed) => {
                    found = true;
                    self.landed.push((index, landed));
                }
                None => self.unconfirmed.push_back((index, confirm)),
            }
        }
        found
    }
}
