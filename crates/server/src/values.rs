//! Values in a configuration file: sizes and times are numbers, or text with units.

use std::fmt;
use std::marker::PhantomData;

use dafs_fabric::units;
use serde::Deserializer;
use serde::de::{Error, Visitor};

/// Bytes: `4194304`, or `"4m"`.
pub(crate) fn bytes<'de, D: Deserializer<'de>, T: TryFrom<u64>>(from: D) -> Result<T, D::Error> {
    from.deserialize_any(Value {
        read: units::size,
        what: "a size such as 4194304 or \"4m\"",
        of: PhantomData,
    })
}

/// As [`bytes`], of a key that may be missing.
pub(crate) fn some_bytes<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    bytes(from).map(Some)
}

/// Whole seconds: `30`, or `"30s"`, `"2m"`.
pub(crate) fn seconds<'de, D: Deserializer<'de>, T: TryFrom<u64>>(from: D) -> Result<T, D::Error> {
    let read = |text: &str| match units::duration(text)? {
        time if time.subsec_nanos() != 0 => Err("expected whole seconds".to_owned()),
        time => Ok(time.as_secs()),
    };
    from.deserialize_any(Value {
        read,
        what: "a time such as 30, \"30s\" or \"2m\"",
        of: PhantomData,
    })
}

struct Value<T, R> {
    read: R,
    what: &'static str,
    of: PhantomData<T>,
}

impl<T: TryFrom<u64>, R: Fn(&str) -> Result<u64, String>> Visitor<'_> for Value<T, R> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.what)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        T::try_from(number).map_err(|_| E::custom(format!("{number} is too much")))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        let positive = u64::try_from(number);
        self.visit_u64(positive.map_err(|_| E::custom(format!("{number} is less than nothing")))?)
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        let number = (self.read)(text).map_err(|what| E::custom(format!("'{text}': {what}")))?;
        self.visit_u64(number)
    }
}
