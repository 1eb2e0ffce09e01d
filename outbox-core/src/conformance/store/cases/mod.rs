pub mod claiming;
pub mod enqueueing;
pub mod operating;
pub mod racing;
pub mod receiving;
pub mod settling;
pub mod storing;
