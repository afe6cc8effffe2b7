"""Series that must and must not be taken for a leak: python3 -m unittest discover -s bench"""

import random
import unittest

from judge import expired, floors, grows, percentile


def noisy(base, noise, count=144, seed=1):
    chance = random.Random(seed)
    return [base + chance.uniform(-noise, noise) for _ in range(count)]


class Growth(unittest.TestCase):
    def test_noise_is_no_leak(self):
        for seed in range(200):
            self.assertFalse(grows(noisy(25, 4, seed=seed), 4), seed)
            self.assertFalse(grows(noisy(60, 30, seed=seed), 16), seed)

    def test_peaks_are_no_leak(self):
        series = [25.0] * 144
        series[100:120] = [80.0] * 20
        self.assertFalse(grows(series, 4))

    def test_a_step_is_no_leak(self):
        for at in range(0, 144, 6):
            series = [25.0] * at + [60.0] * (144 - at)
            self.assertFalse(grows(series, 4), at)

    def test_memory_that_comes_back_after_a_rest_is_no_leak(self):
        self.assertFalse(grows([12.0] * 12 + [2.0] * 36 + [5.0] * 48 + [8.0] * 48, 4))

    def test_a_saw_is_no_leak(self):
        for length in (7, 20, 36, 50):
            series = [25.0 + 30 * (n % length) / length for n in range(144)]
            self.assertFalse(grows(series, 4), length)

    def test_warming_up_is_no_leak(self):
        series = [10 + 20 * min(n / 36, 1) for n in range(144)]
        self.assertFalse(grows(series, 4))

    def test_a_leak_of_memory_is_seen_through_noise(self):
        for seed in range(200):
            series = [value + n * 0.25 for n, value in enumerate(noisy(25, 3, seed=seed))]
            self.assertTrue(grows(series, 4), seed)

    def test_a_leak_of_descriptors_is_seen_through_noise(self):
        for seed in range(200):
            series = [value + n for n, value in enumerate(noisy(60, 10, seed=seed))]
            self.assertTrue(grows(series, 16), seed)

    def test_a_leak_in_steps_is_seen(self):
        series = [25.0 + 2 * (n // 12) for n in range(144)]
        self.assertTrue(grows(series, 4))

    def test_too_few_samples_are_not_judged(self):
        self.assertIsNone(grows([1, 100, 10_000], 2))
        self.assertIsNone(floors([1.0] * 31))
        self.assertIsNotNone(floors([1.0] * 32))


class Others(unittest.TestCase):
    def test_percentiles(self):
        self.assertEqual(percentile(range(1, 101), 0.99), 99)
        self.assertEqual(percentile(range(1, 101), 0.5), 50)
        self.assertEqual(percentile([7], 0.99), 7)

    def test_expired_certificates(self):
        self.assertEqual(expired([(1, 3), (2, 3)]), [])
        self.assertEqual(expired([(1, 3), (3, 3), (4, 9)]), [(3, 3)])


if __name__ == "__main__":
    unittest.main()
