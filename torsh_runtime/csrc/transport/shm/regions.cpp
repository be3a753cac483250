#include "transport/shm/regions.hpp"

#include <algorithm>
#include <exception>
#include <stdexcept>

namespace torsh::shm {

void Regions::add(std::uint64_t region, int rank, std::size_t bytes, std::vector<std::byte*> bases) {
  std::byte* own = bases.at(static_cast<std::size_t>(rank));
  const auto place = std::find_if(regions_.begin(), regions_.end(), [&](const Region& r) { return r.own > own; });
  regions_.insert(place, {region, own, bytes, std::move(bases)});
}

void Regions::add(std::shared_ptr<SharedHeap> heap, std::vector<std::byte*> bases) {
  heap_ = std::move(heap);
  heap_bases_ = std::move(bases);
}

std::optional<Regions::Spot> Regions::find(const std::byte* data, std::size_t bytes, std::vector<Loan>& loans) const {
  if (heap_) {
    const int errors = std::uncaught_exceptions();
    loans.reserve(loans.size() + 1);  // from the loan on nothing may fail
    if (const auto offset = heap_->lend(data, bytes)) {
      loans.emplace_back(heap_, *offset, errors);
      return Spot{heap_->number(), *offset};
    }
  }
  const auto after = std::upper_bound(regions_.begin(), regions_.end(), data,
                                      [](const std::byte* wanted, const Region& r) { return wanted < r.own; });
  if (after == regions_.begin()) return std::nullopt;
  const Region& region = *std::prev(after);
  const auto offset = static_cast<std::size_t>(data - region.own);
  if (offset > region.bytes || bytes > region.bytes - offset) return std::nullopt;
  return Spot{region.number, offset};
}

std::byte* Regions::at(int peer, const Spot& spot) const {
  if (heap_ && heap_->number() == spot.region) return heap_bases_[static_cast<std::size_t>(peer)] + spot.offset;
  for (const Region& region : regions_) {
    if (region.number == spot.region) return region.bases[static_cast<std::size_t>(peer)] + spot.offset;
  }
  throw std::logic_error("the ranks know different regions");
}

}  // namespace torsh::shm
