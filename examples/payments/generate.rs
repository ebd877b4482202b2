//! How `notifications.csv` was made: always the same.

use crate::input::{CHANNELS, HEADER};
use std::fmt::Write;

const ORDERS: u32 = 400;
const CRASHES: u32 = 137;
const TIMES_OUT: u32 = 263;

/// Two rounds of orders reported by all channels at once, every tenth with its
/// callback sent twice; then a round of late copies, some with another amount.
pub(crate) fn notifications() -> String {
    let (mut text, mut id) = (format!("{HEADER}\n"), 0);
    let mut line = |round: u32, order: u32, channel: &str, amount: String| {
        id += 1;
        let merchant = order % 7 + 1;
        let currency = if order.is_multiple_of(9) { "SGD" } else { "THB" };
        let fault = match order {
            CRASHES => "crash",
            TIMES_OUT => "timeout",
            _ => "",
        };
        let number = order + 1000;
        writeln!(
            text,
            "{round},n-{id},{channel},merchant-{merchant},order-{number},{amount},{currency},{fault}"
        )
        .expect("a string takes all");
    };
    for order in 1..=ORDERS {
        let round = if order <= ORDERS / 2 { 1 } else { 2 };
        for turn in 0..3 {
            line(round, order, CHANNELS[((order + turn) % 3) as usize], amount(order));
        }
        if order % 10 == 0 {
            line(round, order, "callback", amount(order));
        }
    }
    for order in 1..=ORDERS {
        if order % 5 == 0 {
            line(3, order, CHANNELS[(order % 3) as usize], amount(order));
        }
        if order % 16 == 0 {
            line(3, order, "callback", format!("1{}", amount(order)));
        }
    }
    text
}

fn amount(order: u32) -> String {
    let cents = order.wrapping_mul(2_654_435_761) % 400_000 + 2_000;
    format!("{}.{:02}", cents / 100, cents % 100)
}
