//! An order file, pfo's own or a peer's. One that is an order can be written and read again.
use pfo_planner::Order;

/// The target.
pub fn order(bytes: &[u8]) {
    let Ok(order) = Order::from_file(bytes) else { return };
    let read = Order::from_json(order.to_json().as_bytes()).unwrap();
    assert_eq!(read.stages(), order.stages());
}
