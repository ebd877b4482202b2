//! The notifications, one a line.

use std::fs;
use std::path::Path;

pub(crate) const HEADER: &str = "round,id,channel,merchant,order,amount,currency,fault";
pub(crate) const CHANNELS: [&str; 3] = ["callback", "redirect", "inquiry"];

/// What a channel reports of a payment.
#[derive(Clone)]
pub(crate) struct Notification {
    /// What is in one round arrives at once; the next comes when all of it is answered.
    pub(crate) round: u32,
    pub(crate) id: String,
    /// Its place in [`CHANNELS`].
    pub(crate) channel: usize,
    pub(crate) merchant: String,
    pub(crate) order: String,
    pub(crate) amount: String,
    pub(crate) currency: String,
    pub(crate) fault: Fault,
}

/// What goes wrong, once, when the order is paid.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Fault {
    None,
    /// The gateway moves the money, and no answer comes.
    TimeOut,
    /// The process dies when the credit is made, before that is recorded.
    Crash,
}

impl Notification {
    /// The order's name over all merchants, in the books.
    pub(crate) fn order_name(&self) -> String {
        format!("{},{}", self.merchant, self.order)
    }
}

pub(crate) fn read(path: &Path) -> Result<Vec<Notification>, String> {
    let text =
        fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))?;
    let mut lines = text.lines();
    if lines.next() != Some(HEADER) {
        return Err(format!("{}, line 1: expected the header \"{HEADER}\"", path.display()));
    }
    let parsed: Result<Vec<_>, String> = lines
        .enumerate()
        .map(|(i, line)| parse(line).map_err(|why| format!("{}, line {}: {why}", path.display(), i + 2)))
        .collect();
    let notifications = parsed?;
    if notifications.is_empty() {
        return Err(format!("{} has no notifications", path.display()));
    }
    Ok(notifications)
}

fn parse(line: &str) -> Result<Notification, String> {
    let fields: Vec<&str> = line.split(',').collect();
    let [round, id, channel, merchant, order, amount, currency, fault] = fields[..] else {
        return Err(format!("{} fields, expected 8 ({HEADER})", fields.len()));
    };
    let named = |name: &str, value: &str| match value {
        "" => Err(format!("the {name} is empty")),
        value => Ok(value.to_owned()),
    };
    if !amount.parse::<f64>().is_ok_and(|amount| amount.is_finite() && amount > 0.0) {
        return Err(format!("{amount:?} is not an amount"));
    }
    Ok(Notification {
        round: round.parse().map_err(|_| format!("{round:?} is not the number of a round"))?,
        id: named("id", id)?,
        channel: CHANNELS
            .iter()
            .position(|known| *known == channel)
            .ok_or_else(|| format!("{channel:?} is not a channel ({})", CHANNELS.join(", ")))?,
        merchant: named("merchant", merchant)?,
        order: named("order", order)?,
        amount: amount.to_owned(),
        currency: named("currency", currency)?,
        fault: match fault {
            "" => Fault::None,
            "timeout" => Fault::TimeOut,
            "crash" => Fault::Crash,
            other => return Err(format!("{other:?} is not a fault (timeout, crash, or nothing)")),
        },
    })
}
