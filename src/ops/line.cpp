#include "ops/line.h"

#include <limits>

#include "ops/operand.h"

namespace anynpu::ops {

Line LinesAlong::sum(const Line& x) const {
  long double sum = 0;
  for (int64_t i = 0; i < length_; ++i) sum += x[static_cast<size_t>(i)];
  return static_cast<double>(sum);
}

Line LinesAlong::max(const Line& x) const {
  double most = -std::numeric_limits<double>::infinity();
  for (int64_t i = 0; i < length_; ++i) {
    const double value = x[static_cast<size_t>(i)];
    if (!(value <= most)) most = value;
    if (std::isnan(most)) break;
  }
  return most;
}

Moments<Line> LinesAlong::moments(const Line& x) const {
  if (length_ == 0) return {0, 0};
  const Line mean = sum(x) / length();
  const Line distance = x - mean;
  return {mean, sum(distance * distance)};
}

Moments<tile::Expr> TilesAlong::moments(const tile::Expr& x) const {
  const bool cols = axis_ == tile::Axis::kCols;
  const auto both = x.builder().ops(cols ? tile::Opcode::kRowMoments : tile::Opcode::kColMoments, {whole(x)});
  return {both[0], both[1]};
}

tile::Expr TilesAlong::whole(const tile::Expr& x) const {
  tile::Type type = x.type();
  (axis_ == tile::Axis::kCols ? type.cols : type.rows) = count_;
  return shaped(x, type);
}

}  // namespace anynpu::ops
