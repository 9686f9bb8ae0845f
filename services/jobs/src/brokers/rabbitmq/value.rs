//! AMQP's values and tables as JSON, and JSON as AMQP's.
//!
//! Headers are made of this. What AMQP knows and JSON does not is read so that nothing is refused,
//! and sent again as it came as far as anybody could tell: integers of all widths become numbers,
//! timestamps seconds, decimals floats; a text that is not UTF-8 becomes an object with its octets
//! in hexadecimal, and its octets again. An integer that AMQP has no room for is not sent.

use pikake_amqp::{Array, Error, Table, Value, short};
use serde_json::{Map, Number, Value as Json};

/// The one name in the object that stands for octets which are not UTF-8.
const OCTETS: &str = "pikake_octets";

pub(crate) fn json(value: &Value) -> Json {
    match value {
        Value::Boolean(value) => Json::from(*value),
        Value::ShortShortInt(value) => Json::from(*value),
        Value::ShortShortUInt(value) => Json::from(*value),
        Value::ShortInt(value) => Json::from(*value),
        Value::ShortUInt(value) => Json::from(*value),
        Value::LongInt(value) => Json::from(*value),
        Value::LongUInt(value) => Json::from(*value),
        Value::LongLongInt(value) => Json::from(*value),
        // One that is no number to AMQP is a text.
        Value::Timestamp(value) => {
            i64::try_from(*value).map_or_else(|_| Json::from(value.to_string()), Json::from)
        }
        Value::Float(value) => Json::from(*value),
        Value::Double(value) => Json::from(*value),
        Value::DecimalValue(value) => {
            Json::from(f64::from(value.value) / 10_f64.powi(i32::from(value.scale)))
        }
        Value::ShortString(text) => Json::from(text.as_str()),
        Value::LongString(text) => of_octets(text.as_bytes()),
        Value::ByteArray(bytes) => of_octets(bytes.as_slice()),
        Value::FieldArray(values) => values.as_slice().iter().map(json).collect(),
        Value::FieldTable(table) => Json::Object(
            table.into_iter().map(|(name, value)| (name.to_string(), json(value))).collect(),
        ),
        Value::Void => Json::Null,
    }
}

fn of_octets(octets: &[u8]) -> Json {
    match std::str::from_utf8(octets) {
        Ok(text) => Json::from(text),
        Err(_) => {
            let hexadecimal: String = octets.iter().map(|octet| format!("{octet:02x}")).collect();
            Json::Object(Map::from_iter([(OCTETS.to_owned(), hexadecimal.into())]))
        }
    }
}

/// The octets that an object stands for, if it does.
fn octets(map: &Map<String, Json>) -> Option<Vec<u8>> {
    let text = map.get(OCTETS).filter(|_| map.len() == 1)?.as_str()?;
    let digits: Vec<u8> =
        text.chars().map(|c| Some(c.to_digit(16)? as u8)).collect::<Option<_>>()?;
    let pairs = digits.chunks_exact(2);
    let is_even = pairs.remainder().is_empty();
    is_even.then(|| pairs.map(|pair| pair[0] << 4 | pair[1]).collect())
}

/// As Celery's client writes them, so that its workers read them.
fn value(json: &Json) -> Result<Value, Error> {
    Ok(match json {
        Json::Null => Value::Void,
        Json::Bool(value) => Value::Boolean(*value),
        Json::Number(number) => of_number(number)?,
        Json::String(text) => Value::LongString(text.as_str().into()),
        Json::Array(values) => {
            Value::FieldArray(Array::from(values.iter().map(value).collect::<Result<Vec<_>, _>>()?))
        }
        Json::Object(map) => match octets(map) {
            Some(octets) => Value::LongString(octets.into()),
            None => Value::FieldTable(table(map)?),
        },
    })
}

fn of_number(number: &Number) -> Result<Value, Error> {
    match number.as_i64() {
        Some(long) => Ok(i32::try_from(long).map_or(Value::LongLongInt(long), Value::LongInt)),
        None if number.is_u64() => {
            let most = i64::MAX;
            Err(Error::Invalid(format!("a header with the number {number}: {most} is the largest")))
        }
        None => Ok(Value::Double(number.as_f64().unwrap_or_default())),
    }
}

pub(crate) fn table(map: &Map<String, Json>) -> Result<Table, Error> {
    let mut table = Table::default();
    for (name, json) in map {
        table.insert(short(name)?, value(json)?);
    }
    Ok(table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json as made;

    #[test]
    fn all_kinds_of_values_are_read() {
        let mut inner = Table::default();
        inner.insert("x".into(), Value::ShortString("y".into()));
        let values = vec![
            Value::Boolean(true),
            Value::ShortShortInt(-1),
            Value::ShortShortUInt(255),
            Value::ShortInt(-2),
            Value::ShortUInt(65_535),
            Value::LongInt(-3),
            Value::LongUInt(u32::MAX),
            Value::LongLongInt(i64::MIN),
            Value::Timestamp(1_700_000_000),
            Value::Timestamp(u64::MAX),
            Value::Double(1.5),
            Value::Float(f32::NAN),
            Value::LongString(b"a\xff".to_vec().into()),
            Value::ByteArray(b"\xfe".to_vec().into()),
            Value::FieldTable(inner),
            Value::Void,
        ];
        let read = json(&Value::FieldArray(values.into()));
        let expected = made!([
            true, -1, 255, -2, 65_535, -3, 4_294_967_295_u32, i64::MIN, 1_700_000_000,
            "18446744073709551615", 1.5, null, {"pikake_octets": "61ff"}, {"pikake_octets": "fe"},
            {"x": "y"}, null,
        ]);
        assert_eq!(read, expected);
    }

    #[test]
    fn octets_are_sent_as_they_came() {
        for octets in [&b"\xff"[..], b"a\xc3", b"\0\xf0\x9f"] {
            let came = Value::LongString(octets.to_vec().into());
            assert_eq!(value(&json(&came)).unwrap(), came);
        }
        // What only looks so is a table.
        for no in [made!({"pikake_octets": "6"}), made!({"pikake_octets": "zz"}), made!({"a": 1})] {
            assert_eq!(json(&value(&no).unwrap()), no);
        }
    }

    #[test]
    fn a_number_that_would_not_be_the_same_is_refused() {
        let largest = made!(i64::MAX);
        assert_eq!(json(&value(&largest).unwrap()), largest);
        assert!(matches!(value(&made!(u64::MAX)), Err(Error::Invalid(_))));
    }
}
