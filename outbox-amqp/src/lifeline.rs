use std::io;
use std::net::Shutdown;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use socket2::{SockRef, Socket};

/// A second handle on a connection's socket, to cut it. lapin only ever asks a broker politely to close, so a
/// connection to one that does not answer would keep its thread for good.
#[derive(Clone, Default)]
pub(crate) struct Lifeline(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    socket: Option<Socket>,
    cut: bool,
}

impl Lifeline {
    /// Takes hold of the socket; cuts it when it comes too late.
    pub(crate) fn hold<'s>(&self, socket: impl Into<SockRef<'s>>) -> io::Result<()> {
        let socket = socket.into().try_clone()?;
        let mut state = self.state();
        state.socket = Some(socket);
        if state.cut {
            state.shut_down();
        }
        Ok(())
    }

    pub(crate) fn cut(&self) {
        let mut state = self.state();
        state.cut = true;
        state.shut_down();
    }

    pub(crate) fn is_cut(&self) -> bool {
        self.state().cut
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Cuts when it is dropped before [`Guard::keep`]: the connection was given up while it was opened.
    pub(crate) fn guard(&self) -> Guard {
        Guard(Some(self.clone()))
    }
}

impl State {
    fn shut_down(&mut self) {
        if let Some(socket) = self.socket.take() {
            // Fails only when the connection has ended already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

pub(crate) struct Guard(Option<Lifeline>);

impl Guard {
    pub(crate) fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(lifeline) = &self.0 {
            lifeline.cut();
        }
    }
}
