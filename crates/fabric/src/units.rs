//! Sizes and times as people write them in options, URLs and files: `4k`, `1.5g`, `500ms`, `2h`.

use std::time::Duration;

/// Digits behind the point that are looked at; a billionth is less than a byte or a nanosecond of all
/// that is meant.
const FRACTION_DIGITS: usize = 9;

/// Bytes: a number with or without a unit of k, m, g or t, which are powers of 1024, in small or capital
/// letters; `KiB`, `kb` and so on mean the same. Parts of a byte are dropped.
///
/// # Errors
/// What would be a size.
pub fn size(text: &str) -> Result<u64, String> {
    let wrong = || "expected a size such as 4096, 4k, 1.5m or 2g".to_owned();
    let lower = text.trim().to_ascii_lowercase();
    let (number, unit) = split(&lower);
    let unit = unit.strip_suffix("ib").or(unit.strip_suffix('b')).unwrap_or(unit);
    let shift = match unit {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "t" => 40,
        _ => return Err(wrong()),
    };
    let bytes = scaled(number, 1 << shift).ok_or_else(wrong)?;
    u64::try_from(bytes).map_err(|_| "too large: a size is less than 16384 pebibytes".to_owned())
}

/// A time: a number with or without a unit of us, ms, s, m (or min), h or d; seconds without one.
///
/// # Errors
/// What would be a time.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || "expected a time such as 500ms, 60s, 2m or 1h".to_owned();
    let lower = text.trim().to_ascii_lowercase();
    let (number, unit) = split(&lower);
    let nanoseconds: u128 = match unit {
        "us" => 1_000,
        "ms" => 1_000_000,
        "" | "s" => 1_000_000_000,
        "m" | "min" => 60_000_000_000,
        "h" => 3_600_000_000_000,
        "d" => 86_400_000_000_000,
        _ => return Err(wrong()),
    };
    let nanoseconds = scaled(number, nanoseconds).ok_or_else(wrong)?;
    u64::try_from(nanoseconds)
        .map(Duration::from_nanos)
        .map_err(|_| "too long: a time is at most 500 years".to_owned())
}

/// The number, and what follows it.
fn split(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim_start())
}

/// A decimal number of `unit`, rounded down; none where it is no number.
fn scaled(number: &str, unit: u128) -> Option<u128> {
    let (whole, fraction) = match number.split_once('.') {
        Some((whole, fraction)) if !fraction.is_empty() => (whole, fraction),
        Some(_) => return None,
        None => (number, ""),
    };
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return None;
    }
    let whole = u128::from(whole.parse::<u64>().ok()?).checked_mul(unit)?;
    let kept = &fraction[..fraction.len().min(FRACTION_DIGITS)];
    let part: u128 = format!("{kept:0<FRACTION_DIGITS$}").parse().ok()?;
    whole.checked_add(part.checked_mul(unit)? / 10_u128.pow(FRACTION_DIGITS as u32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4k", 4096),
            ("4K", 4096),
            ("4KiB", 4096),
            ("4 kb", 4096),
            ("1MiB", 1 << 20),
            ("1.5m", 3 << 19),
            ("2G", 2 << 30),
            ("1t", 1 << 40),
            ("0.1", 0),
            ("16383t", 16383 << 40),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for wrong in
            ["", "k", "-1", "+1", "1x", "99999999t", "4kk", "1.", ".5k", "1.2.3", "4i", "1e3"]
        {
            assert!(size(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn times_have_units() {
        for (text, ms) in [
            ("60", 60_000),
            ("60s", 60_000),
            ("0.5", 500),
            ("500ms", 500),
            ("1.25s", 1250),
            ("2m", 120_000),
            ("2min", 120_000),
            ("1h", 3_600_000),
            ("1d", 86_400_000),
        ] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        assert_eq!(duration("7us"), Ok(Duration::from_micros(7)));
        for wrong in ["", "s", "-1s", "1 y", "soon", "99999999999999m", "1..5"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }
}
