//! The readings of a path: what remains of it after steps that a server may or may not take.
//!
//! Each step is tried at each place on its own, which covers all sequences of steps. There can be many readings, but only
//! two numbers of each matter to a pattern: how deep it is, and how many of its first segments fit. So all readings are
//! compared at once, as sets of depths:
//!
//! ```text
//! /login/..//x against /login/{id}    depths after each piece, by the number of segments that fit
//!                                     0 fit    1 fits    2 fit
//! at the start                        {0}
//! login: pushed                                {1}
//! ..: kept as a segment, dropped,
//!     or resolved                     {0}      {1}       {2}
//! (empty): kept or dropped            {0, 1}   {1}       {2, 3}
//! x: pushed                           {1, 2}             {2, 3, 4}    a reading of depth 2 fits: /login/x
//! ```

use std::ops::Range;

use smallvec::{SmallVec, smallvec};

/// The pieces of a path, and the depths of its readings.
#[derive(Debug)]
pub struct Readings {
    text: SmallVec<[u8; TEXT]>,
    pieces: SmallVec<[Piece; PIECES]>,
    lengths: u128,
}

impl Readings {
    /// Returns `None` for too many pieces.
    pub fn new(text: SmallVec<[u8; TEXT]>, pieces: SmallVec<[Piece; PIECES]>) -> Option<Self> {
        if pieces.len() > MAX_PIECES {
            return None;
        }
        let mut readings = Self {
            text,
            pieces,
            lengths: 0,
        };
        readings.lengths = readings.depths(&[]);
        Some(readings)
    }

    /// Returns whether a reading has one of these lengths, which are bits, and begins with segments that fit.
    ///
    /// `fits` compares a name with the segment of this number of the pattern. A segment without a name fits only if
    /// `fits_all` returns true.
    pub fn any_fits(
        &self,
        (count, lengths): (usize, u128),
        fits: impl Fn(usize, &[u8]) -> bool,
        fits_all: impl Fn(usize) -> bool,
    ) -> bool {
        if self.lengths & lengths == 0 {
            return false;
        }
        let mut fitting: SmallVec<[Fitting; 8]> = SmallVec::new();
        for number in 0..count {
            let fitting_here = if fits_all(number) {
                Fitting::ALL
            } else {
                self.fitting(|name| fits(number, name))
            };
            // Most patterns end here: no piece of the path is like this segment.
            if fitting_here.pieces == 0 {
                return false;
            }
            fitting.push(fitting_here);
        }
        self.depths(&fitting) & lengths != 0
    }

    fn fitting(&self, fits: impl Fn(&[u8]) -> bool) -> Fitting {
        let mut pieces = 0;
        for (number, piece) in self.pieces.iter().enumerate() {
            pieces |= u128::from(fits(piece.name(&self.text))) << number;
        }
        Fitting {
            pieces,
            fits_unnamed: false,
        }
    }

    /// Returns the depths of the readings whose first segments all fit.
    fn depths(&self, fitting: &[Fitting]) -> u128 {
        let count = fitting.len();
        // Readings that are at the start of a segment, inside of one that is counted already, and at their end.
        let mut begun = Depths::start(count);
        let (mut inside, mut ended) = (Depths::none(count), Depths::none(count));
        for (number, piece) in self.pieces.iter().enumerate() {
            let bit = 1 << number;
            let named = |place: usize| fitting[place].pieces & bit != 0;
            let unnamed = |place: usize| fitting[place].fits_unnamed;
            let text = piece.text(&self.text);
            let closed = begun.after(named, Effect::of(piece.name(&self.text)));
            let continued = if piece.cut.is_some() {
                closed.clone()
            } else {
                begun.after(unnamed, Effect::Segment)
            };
            match piece.border {
                Border::Slash => {
                    begun = closed;
                    begun.add(&inside);
                    inside = Depths::none(count);
                }
                Border::PossibleSlash => {
                    let next = inside.clone();
                    inside.add(&continued);
                    begun = closed;
                    begun.add(&next);
                }
                Border::PossibleEnd | Border::End => {
                    // A slash at the end begins no segment.
                    ended.add(if text.is_empty() { &begun } else { &closed });
                    ended.add(&inside);
                    inside.add(&continued);
                    begun = Depths::none(count);
                }
            }
        }
        ended.all_fit()
    }
}

/// Where a segment of a pattern fits.
#[derive(Clone, Copy)]
struct Fitting {
    /// The pieces whose names fit, as bits.
    pieces: u128,
    /// Whether a segment without a name fits too.
    fits_unnamed: bool,
}

impl Fitting {
    const ALL: Self = Self {
        pieces: u128::MAX,
        fits_unnamed: true,
    };
}

// === Piece ===

/// A part of a decoded path that contains nothing that may be a slash, or the end of the path.
#[derive(Clone, Copy, Debug)]
pub struct Piece {
    start: u16,
    end: u16,
    /// Where some servers cut it off.
    cut: Option<u16>,
    border: Border,
}

/// The end of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Border {
    /// The end of the path.
    End,
    /// Some servers cut the path off here.
    PossibleEnd,
    /// Some servers read a slash here.
    PossibleSlash,
    Slash,
}

impl Piece {
    pub fn new(text: Range<usize>, cut: Option<usize>, border: Border) -> Option<Self> {
        let cut = cut.map(u16::try_from).transpose().ok()?;
        Some(Self {
            start: u16::try_from(text.start).ok()?,
            end: u16::try_from(text.end).ok()?,
            cut,
            border,
        })
    }

    fn text(self, path: &[u8]) -> &[u8] {
        &path[usize::from(self.start)..usize::from(self.end)]
    }

    /// Returns the text until it is cut off.
    fn name(self, path: &[u8]) -> &[u8] {
        &path[usize::from(self.start)..usize::from(self.cut.unwrap_or(self.end))]
    }
}

/// The effects that a segment may have on a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    /// It is a segment.
    Segment,
    /// It is a segment, or is dropped.
    Droppable,
    /// It is a segment, is dropped, or removes the one before it.
    Parent,
}

impl Effect {
    /// An empty name may be dropped, and so may one that is empty once its end is dropped.
    fn of(name: &[u8]) -> Self {
        if !name.iter().copied().all(is_dropped_at_end) {
            Self::Segment
        } else if name.starts_with(b"..") {
            Self::Parent
        } else {
            Self::Droppable
        }
    }
}

// === Depths ===

/// The depths of readings, as bits, by the number of their first segments that fit: all up to the last one of the reading
/// or of the pattern, or up to the first one that does not fit. For up to eight segments without an allocation.
#[derive(Clone)]
struct Depths(SmallVec<[u128; 9]>);

impl Depths {
    fn none(count: usize) -> Self {
        Self(smallvec![0; count + 1])
    }

    fn start(count: usize) -> Self {
        let mut start = Self::none(count);
        start.0[0] = 1;
        start
    }

    fn add(&mut self, other: &Self) {
        for (own, other) in self.0.iter_mut().zip(&other.0) {
            *own |= other;
        }
    }

    /// Returns the depths of readings in which all segments of the pattern fit.
    fn all_fit(&self) -> u128 {
        self.0.last().copied().unwrap_or(0)
    }

    /// Returns the depths after a segment, with all that it may do.
    fn after(&self, fits: impl Fn(usize) -> bool, effect: Effect) -> Self {
        let mut after = self.pushed(fits);
        if effect != Effect::Segment {
            after.add(self);
        }
        if effect == Effect::Parent {
            after.add(&self.popped());
        }
        after
    }

    fn pushed(&self, fits: impl Fn(usize) -> bool) -> Self {
        let count = self.0.len() - 1;
        let mut pushed = Self::none(count);
        for (number, depths) in self.0.iter().copied().enumerate() {
            // The readings that end where the pattern has this segment.
            let at_number = depths & 1 << number;
            if number < count && at_number != 0 && fits(number) {
                pushed.0[number] |= (depths ^ at_number) << 1;
                pushed.0[number + 1] |= at_number << 1;
            } else {
                pushed.0[number] |= depths << 1;
            }
        }
        pushed
    }

    fn popped(&self) -> Self {
        let mut popped = Self::none(self.0.len() - 1);
        for (number, depths) in self.0.iter().copied().enumerate() {
            let at_number = depths & 1 << number;
            popped.0[number] |= (depths ^ at_number) >> 1;
            // The root has no parent.
            let before = number.saturating_sub(1);
            popped.0[before] |= u128::from(at_number != 0) << before;
        }
        popped
    }
}

/// Returns whether some servers drop this byte at the end of a segment.
pub fn is_dropped_at_end(byte: u8) -> bool {
    matches!(byte, b'.' | b' ') || byte.is_ascii_control()
}

/// Returns whether a server might read a name as this text: in any case, and without what may be dropped at its end.
pub fn may_equal(name: &[u8], text: &[u8]) -> bool {
    let start = name.get(..text.len());
    start.is_some_and(|start| start.eq_ignore_ascii_case(text))
        && name[text.len()..].iter().copied().all(is_dropped_at_end)
}

/// The longest path that is compared without an allocation, in bytes.
pub const TEXT: usize = 128;
/// The most pieces that are compared. A depth is at most their number, and so fits into 128 bits.
pub const MAX_PIECES: usize = 100;
/// The most pieces of a path without an allocation.
const PIECES: usize = 16;
