// SPDX-License-Identifier: MIT OR Apache-2.0
//! NCCL's operators on the bytes of its types.
//!
//! Ranks are taken in their order, and every step is rounded to the type. A
//! GPU may take them in another order, which can change the last bit of a sum of
//! floating point numbers; what is exact in any order is the same.

/// An `ncclDataType_t`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    Int8,
    Uint8,
    Int32,
    Uint32,
    Int64,
    Uint64,
    Float32,
    Float64,
    /// A floating point number of up to 16 bits.
    Short(Format),
}

/// How a short floating point number is made up, beside its sign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Format {
    exponent: u32,
    mantissa: u32,
    /// Whether the largest exponent is for infinities and NaN alone; `e4m3` has no infinities, and one NaN.
    infinities: bool,
}

const FLOAT16: Format = Format {
    exponent: 5,
    mantissa: 10,
    infinities: true,
};
const BFLOAT16: Format = Format {
    exponent: 8,
    mantissa: 7,
    infinities: true,
};
const FLOAT8_E4M3: Format = Format {
    exponent: 4,
    mantissa: 3,
    infinities: false,
};
const FLOAT8_E5M2: Format = Format {
    exponent: 5,
    mantissa: 2,
    infinities: true,
};

impl Type {
    /// The type by NCCL's number.
    pub(crate) fn from_number(number: i32) -> Option<Self> {
        Some(match number {
            0 => Self::Int8,
            1 => Self::Uint8,
            2 => Self::Int32,
            3 => Self::Uint32,
            4 => Self::Int64,
            5 => Self::Uint64,
            6 => Self::Short(FLOAT16),
            7 => Self::Float32,
            8 => Self::Float64,
            9 => Self::Short(BFLOAT16),
            10 => Self::Short(FLOAT8_E4M3),
            11 => Self::Short(FLOAT8_E5M2),
            _ => return None,
        })
    }

    pub(crate) fn is_integer(self) -> bool {
        !matches!(self, Self::Float32 | Self::Float64 | Self::Short(_))
    }

    /// Bytes of an element.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::Int8 | Self::Uint8 => 1,
            Self::Int32 | Self::Uint32 | Self::Float32 => 4,
            Self::Int64 | Self::Uint64 | Self::Float64 => 8,
            Self::Short(format) => ((1 + format.exponent + format.mantissa) / 8) as usize,
        }
    }
}

impl Format {
    fn bias(self) -> i32 {
        (1 << (self.exponent - 1)) - 1
    }

    /// The number with these bits.
    fn decode(self, bits: u16) -> f64 {
        let fraction = u32::from(bits) & ((1 << self.mantissa) - 1);
        let exponent = (u32::from(bits) >> self.mantissa) & ((1 << self.exponent) - 1);
        let negative = (u32::from(bits) >> (self.mantissa + self.exponent)) & 1 == 1;
        let top = (1 << self.exponent) - 1;
        let steps = (self.mantissa as i32) + self.bias();
        let size = if exponent == top && self.infinities {
            if fraction == 0 {
                f64::INFINITY
            } else {
                f64::NAN
            }
        } else if exponent == top && fraction == (1 << self.mantissa) - 1 {
            f64::NAN
        } else if exponent == 0 {
            f64::from(fraction) * 2_f64.powi(1 - steps)
        } else {
            f64::from(fraction + (1 << self.mantissa)) * 2_f64.powi(exponent as i32 - steps)
        };
        if negative { -size } else { size }
    }

    /// The bits of the nearest number, of two equally near the even one.
    fn encode(self, value: f64) -> u16 {
        let sign = u32::from(value.is_sign_negative()) << (self.mantissa + self.exponent);
        let top = (1_u32 << self.exponent) - 1;
        let all_ones = (1_u32 << self.mantissa) - 1;
        let nan = (top << self.mantissa)
            | if self.infinities {
                all_ones ^ (all_ones >> 1)
            } else {
                all_ones
            };
        let bits = if value.is_nan() {
            nan
        } else {
            let size = value.abs();
            // The exponent of the unit in the last place; below the least exponent it stays.
            let least = 1 - self.bias();
            let exponent = if size.is_finite() && size > 0.0 {
                // Exact: that of the number as a double, which none of these types reaches.
                ((size.to_bits() >> 52) as i32 - 1023).max(least)
            } else {
                least
            };
            let unit = 2_f64.powi(exponent - self.mantissa as i32);
            let steps = if size.is_finite() {
                (size / unit).round_ties_even() as u32
            } else {
                0
            };
            // Steps count on from one exponent to the next, so a carry is right by itself.
            let index = (((exponent - least) as u32) << self.mantissa) + steps;
            let largest = if self.infinities {
                (top << self.mantissa) - 1
            } else {
                (top << self.mantissa) + all_ones - 1
            };
            match size.is_finite() && index <= largest {
                true => index,
                false if self.infinities => top << self.mantissa,
                false => nan,
            }
        };
        (sign | bits) as u16
    }
}

/// An `ncclRedOp_t`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Operator {
    Sum,
    Product,
    Largest,
    Least,
    Average,
    /// Each rank's numbers times this, then the sum.
    Scaled(f64),
}

impl Operator {
    /// One of NCCL's own operators, by its number.
    pub(crate) fn from_number(number: i32) -> Option<Self> {
        Some(match number {
            0 => Self::Sum,
            1 => Self::Product,
            2 => Self::Largest,
            3 => Self::Least,
            4 => Self::Average,
            _ => return None,
        })
    }

    /// The work that is left once each rank has multiplied its numbers.
    pub(crate) fn after_scaling(self) -> Self {
        match self {
            Self::Scaled(_) => Self::Sum,
            other => other,
        }
    }
}

/// The first element of `bytes` as a number.
pub(crate) fn number(bytes: &[u8], of: Type) -> Option<f64> {
    let element = bytes.get(..of.size())?;
    let mut wide = [0; 8];
    wide[..element.len()].copy_from_slice(element);
    let bits = u64::from_le_bytes(wide);
    Some(match of {
        Type::Int8 => f64::from(bits as i8),
        Type::Uint8 | Type::Uint32 | Type::Uint64 => bits as f64,
        Type::Int32 => f64::from(bits as i32),
        Type::Int64 => bits as i64 as f64,
        Type::Float32 => f64::from(f32::from_bits(bits as u32)),
        Type::Float64 => f64::from_bits(bits),
        Type::Short(format) => format.decode(bits as u16),
    })
}

macro_rules! integers {
    ($number:ty, $operator:expr, $parts:expr) => {
        reduced::<{ size_of::<$number>() }, $number>(
            $parts,
            <$number>::from_le_bytes,
            |number| number.to_le_bytes(),
            |a, b| match $operator {
                Operator::Product => a.wrapping_mul(b),
                Operator::Largest => a.max(b),
                Operator::Least => a.min(b),
                _ => a.wrapping_add(b),
            },
            |total, ranks| match $operator {
                Operator::Average => total / <$number>::try_from(ranks).unwrap_or(<$number>::MAX),
                _ => total,
            },
            |number| match $operator {
                Operator::Scaled(factor) => number.wrapping_mul(factor as $number),
                _ => number,
            },
        )
    };
}

/// The result for all ranks: `parts` are the numbers of each rank, in their order.
pub(crate) fn reduce(parts: &[&[u8]], of: Type, operator: Operator) -> Vec<u8> {
    let ranks = parts.len() as f64;
    // The factor is of the type, too.
    let factor = |round: &dyn Fn(f64) -> f64| match operator {
        Operator::Average => Some(round(1.0 / ranks)),
        Operator::Scaled(factor) => Some(round(factor)),
        _ => None,
    };
    let combine = |a: f64, b: f64| match operator {
        Operator::Product => a * b,
        Operator::Largest => larger(a, b),
        Operator::Least => -larger(-a, -b),
        _ => a + b,
    };
    match of {
        Type::Int8 => integers!(i8, operator, parts),
        Type::Uint8 => integers!(u8, operator, parts),
        Type::Int32 => integers!(i32, operator, parts),
        Type::Uint32 => integers!(u32, operator, parts),
        Type::Int64 => integers!(i64, operator, parts),
        Type::Uint64 => integers!(u64, operator, parts),
        Type::Float64 => {
            let factor = factor(&|value| value);
            let scale = |number| factor.map_or(number, |factor| factor * number);
            let (from, to) = (f64::from_le_bytes, f64::to_le_bytes);
            reduced(parts, from, to, combine, |total, _| total, scale)
        }
        Type::Float32 => {
            let factor = factor(&|value| f64::from(value as f32));
            // A product or a sum of two is exact enough as a double that rounding it once more is right.
            let round = |value: f64| value as f32;
            let scale =
                |number: f32| factor.map_or(number, |factor| round(factor * f64::from(number)));
            let combine = |a: f32, b: f32| round(combine(f64::from(a), f64::from(b)));
            let (from, to) = (f32::from_le_bytes, f32::to_le_bytes);
            reduced(parts, from, to, combine, |total, _| total, scale)
        }
        Type::Short(format) => {
            let factor = factor(&|value| format.decode(format.encode(value)));
            let scale = |number: u16| {
                factor.map_or(number, |factor| {
                    format.encode(factor * format.decode(number))
                })
            };
            let combine =
                |a: u16, b: u16| format.encode(combine(format.decode(a), format.decode(b)));
            if of.size() == 1 {
                let (from, to) = (|byte: [u8; 1]| u16::from(byte[0]), |bits: u16| [bits as u8]);
                reduced(parts, from, to, combine, |total, _| total, scale)
            } else {
                let (from, to) = (u16::from_le_bytes, u16::to_le_bytes);
                reduced(parts, from, to, combine, |total, _| total, scale)
            }
        }
    }
}

/// The larger of two; NaN if one is.
fn larger(a: f64, b: f64) -> f64 {
    if a.is_nan() || b.is_nan() {
        f64::NAN
    } else {
        a.max(b)
    }
}

fn reduced<const SIZE: usize, T: Copy>(
    parts: &[&[u8]],
    from: impl Fn([u8; SIZE]) -> T,
    to: impl Fn(T) -> [u8; SIZE],
    combine: impl Fn(T, T) -> T,
    finish: impl Fn(T, usize) -> T,
    scale: impl Fn(T) -> T,
) -> Vec<u8> {
    let Some((first, rest)) = parts.split_first() else {
        return Vec::new();
    };
    let numbers = |part: &[u8]| -> Vec<T> {
        let elements = part.as_chunks::<SIZE>().0.iter();
        elements.map(|&element| scale(from(element))).collect()
    };
    let mut totals = numbers(first);
    for part in rest {
        for (total, number) in totals.iter_mut().zip(numbers(part)) {
            *total = combine(*total, number);
        }
    }
    totals
        .into_iter()
        .flat_map(|total| to(finish(total, parts.len())))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_short_number_is_its_own_nearest() {
        for format in [FLOAT16, BFLOAT16, FLOAT8_E4M3, FLOAT8_E5M2] {
            let bits = 1 + format.exponent + format.mantissa;
            for number in 0..1_u32 << bits {
                let value = format.decode(number as u16);
                let again = format.decode(format.encode(value));
                let same = again.to_bits() == value.to_bits() || (again.is_nan() && value.is_nan());
                assert!(same, "{format:?} {number:#x}: {value} became {again}");
            }
        }
    }

    #[test]
    fn numbers_between_two_go_to_the_nearer_and_to_the_even_one() {
        // 2048 and 2050 are neighbours in float16, 65504 is its largest value.
        let near = |value| FLOAT16.decode(FLOAT16.encode(value));
        assert_eq!(
            (near(2049.0), near(2051.0), near(2049.1)),
            (2048.0, 2052.0, 2050.0)
        );
        assert_eq!((near(65519.0), near(65520.0)), (65504.0, f64::INFINITY));
        assert_eq!((near(5.9e-8), near(2.9e-8)), (2_f64.powi(-24), 0.0));
        let tiny = |value| FLOAT8_E4M3.decode(FLOAT8_E4M3.encode(value));
        assert_eq!((tiny(448.0), tiny(-17.0)), (448.0, -16.0));
        assert!(tiny(1e6).is_nan(), "there is no infinity");
        assert_eq!(BFLOAT16.encode(1.0), 0x3f80);
        assert_eq!(FLOAT16.encode(1.0), 0x3c00);
        assert_eq!(FLOAT8_E4M3.encode(1.0), 0x38);
        assert_eq!(FLOAT8_E5M2.encode(-1.0), 0xbc);
    }

    fn of_numbers(numbers: [[i32; 2]; 3], operator: Operator) -> Vec<i32> {
        let parts = numbers.map(|[a, b]| [a.to_le_bytes(), b.to_le_bytes()].concat());
        let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
        let bytes = reduce(&parts, Type::Int32, operator);
        let numbers = bytes.as_chunks::<4>().0.iter();
        numbers.map(|&number| i32::from_le_bytes(number)).collect()
    }

    #[test]
    fn operators_on_integers() {
        let numbers = [[1, -7], [2, 5], [6, 0]];
        assert_eq!(of_numbers(numbers, Operator::Sum), [9, -2]);
        assert_eq!(of_numbers(numbers, Operator::Product), [12, 0]);
        assert_eq!(of_numbers(numbers, Operator::Largest), [6, 5]);
        assert_eq!(of_numbers(numbers, Operator::Least), [1, -7]);
        assert_eq!(of_numbers(numbers, Operator::Average), [3, 0]);
        assert_eq!(of_numbers(numbers, Operator::Scaled(2.0)), [18, -4]);
    }

    #[test]
    fn sums_are_rounded_to_their_type() {
        let bytes = |value: f64| FLOAT16.encode(value).to_le_bytes();
        let parts = [bytes(2048.0), bytes(1.0), bytes(1.0)];
        let parts: Vec<&[u8]> = parts.iter().map(<[u8; 2]>::as_slice).collect();
        let sum = reduce(&parts, Type::Short(FLOAT16), Operator::Sum);
        assert_eq!(number(&sum, Type::Short(FLOAT16)), Some(2048.0));
        let average = reduce(&parts[1..], Type::Short(FLOAT16), Operator::Average);
        assert_eq!(number(&average, Type::Short(FLOAT16)), Some(1.0));
    }
}
