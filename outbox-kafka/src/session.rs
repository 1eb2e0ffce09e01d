use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::config::KafkaConfig;
use crate::line::Line;
use crate::trouble::Trouble;

/// The one producer, made when it is needed and made anew when it cannot go on.
pub(crate) struct Session {
    pub(crate) config: KafkaConfig,
    line: Mutex<Option<Arc<Line>>>,
}

impl Session {
    pub(crate) fn new(config: KafkaConfig) -> Self {
        Self { config, line: Mutex::default() }
    }

    /// The producer there is, or a new one.
    pub(crate) fn line(&self) -> Result<Arc<Line>, Trouble> {
        let mut current = self.current();
        if let Some(line) = current.as_ref() {
            match line.fatal() {
                None => return Ok(line.clone()),
                Some(_) => tracing::warn!("the Kafka producer met a fatal error; making a new one"),
            }
        }
        let line = Arc::new(Line::open(&self.config)?);
        *current = Some(line.clone());
        Ok(line)
    }

    /// Gives a producer up with everything in it, so that nothing is sent after its call has ended.
    pub(crate) fn retire(&self, line: &Arc<Line>) {
        let mut current = self.current();
        if current.as_ref().is_some_and(|known| Arc::ptr_eq(known, line)) {
            *current = None;
        }
        line.purge();
    }

    pub(crate) async fn close(&self) -> Result<(), Trouble> {
        let line = self.current().take();
        match line {
            Some(line) => line.flush(self.config.connect_timeout).await,
            None => Ok(()),
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<Line>>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
