//! One charge, or several that are decided together.

use super::charge::Charge;

/// One charge, or several that are decided together: all or none.
///
/// Methods of [`RateLimiter`](crate::RateLimiter) take it: a [`Charge`], or a reference to an array, a slice or a `Vec`
/// of charges.
///
/// # Examples
///
/// ```
/// use tollgate::{Key, Policy, Quota, RateLimiter};
///
/// # async fn example(limiter: RateLimiter) -> Result<(), tollgate::Error> {
/// let user = Policy::new("user", Quota::per_minute(100));
/// let global = Policy::new("global", Quota::per_second(1_000));
/// let ada = user.charge(Key::new("ada"));
///
/// limiter.check(ada).await?;
/// limiter.check(&[ada, global.charge(Key::GLOBAL)]).await?;
/// # Ok(())
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a charge, nor a list of charges",
    label = "not a charge",
    note = "a policy makes a charge for a key: `policy.charge(Key::new(\"ada\"))`",
    note = "several charges are passed by reference: `&[one, other]`"
)]
pub trait AsCharges<'a>: sealed::Sealed {
    /// Returns the charges.
    fn as_charges(&self) -> &[Charge<'a>];
}

impl<'a> AsCharges<'a> for Charge<'a> {
    #[inline]
    fn as_charges(&self) -> &[Charge<'a>] {
        std::slice::from_ref(self)
    }
}

impl<'a> AsCharges<'a> for &[Charge<'a>] {
    #[inline]
    fn as_charges(&self) -> &[Charge<'a>] {
        self
    }
}

// Not for arrays by value: clippy would ask for them wherever `&[a, b]` is written.
impl<'a, const N: usize> AsCharges<'a> for &[Charge<'a>; N] {
    #[inline]
    fn as_charges(&self) -> &[Charge<'a>] {
        self.as_slice()
    }
}

impl<'a> AsCharges<'a> for &Vec<Charge<'a>> {
    #[inline]
    fn as_charges(&self) -> &[Charge<'a>] {
        self
    }
}

mod sealed {
    use super::Charge;

    pub trait Sealed {}

    impl Sealed for Charge<'_> {}
    impl Sealed for &[Charge<'_>] {}
    impl<const N: usize> Sealed for &[Charge<'_>; N] {}
    impl Sealed for &Vec<Charge<'_>> {}
}
