//! What the services tell each other. Each carries all that its readers need, so that none has to ask back.

use serde::{Deserialize, Serialize};

pub const ORDER_CREATED: &str = "order.created";
pub const POINT_GRANTED: &str = "point.granted";

#[derive(Debug, Serialize, Deserialize)]
pub struct OrderCreated {
    pub order: String,
    pub member: String,
    pub sku: String,
    pub quantity: i64,
    pub cents: i64,
}

#[derive(Debug, Serialize, Deserialize)]
pub struct PointGranted {
    pub order: String,
    pub member: String,
    pub points: i64,
}
